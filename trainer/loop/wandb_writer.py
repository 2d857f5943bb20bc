"""Curves for wandb, beside TensorBoard's: into a folder of the run, from where `wandb sync` sends them, or at once."""

from __future__ import annotations

import importlib.util
import netrc
import os
from pathlib import Path
from typing import Any

from trainer.core.files import make_folder
from trainer.formats.distribution import install_command
from trainer.recipe.options import Options, OptionsError


class WandbWriter:
    """Points of one start as one run of wandb. Those over samples and tokens are left out: it has axes of its own."""

    def __init__(self, options: Options) -> None:
        """Raises OptionsError where the package, the folder or, to send at once, a key is missing. Nobody is asked."""
        if importlib.util.find_spec("wandb") is None:
            raise OptionsError(f"--wandb-project: wandb is not installed here: {install_command('wandb')}")
        folder = options.wandb_save_dir or options.tensorboard_dir or options.save
        if not folder:
            raise OptionsError("--wandb-project without --wandb-save-dir: give the folder that its files go to")
        if options.wandb_mode == "online" and not _has_key():
            raise OptionsError("--wandb-mode online: no WANDB_API_KEY and no login is here: give one, or offline")
        try:
            make_folder(Path(folder))
        except OSError as error:
            raise OptionsError(f"--wandb-save-dir {folder}: {error.strerror}") from None
        self._run = _begin(options, folder)

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """One point, if it is over iterations."""
        if " vs " not in tag and "y=steps" not in tag:
            self._run.log({tag: value}, step=step)

    def flush(self) -> None:
        """Nothing is kept back here: its own process writes what it is given."""

    def close(self) -> None:
        """Wait until all is written. `finish` returns before wandb's own process has written its last block."""
        import wandb

        self._run.finish()
        wandb.teardown()


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _begin(options: Options, folder: str) -> Any:
    import wandb

    # What a machine has, and what a person wrote into a repository, is nobody else's: the curves and options alone.
    settings = wandb.Settings(
        silent=True,
        console="off",
        x_disable_stats=True,
        x_disable_meta=True,
        disable_git=True,
        disable_code=True,
        save_code=False,
        disable_job_creation=True,
    )
    return wandb.init(
        project=options.wandb_project,
        entity=options.wandb_entity,
        name=options.wandb_exp_name,
        dir=folder,
        mode=options.wandb_mode,
        config={key: value for key, value in options.items() if value is not None},
        settings=settings,
    )
