"""Curves of a training for TensorBoard and wandb."""

from __future__ import annotations

import importlib.util
import math
import netrc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from trainer.core.console import complain
from trainer.core.files import HeldFolder, be_as_open_as_its_folder, make_folder
from trainer.formats.checkpoint.history import Progress
from trainer.formats.distribution import install_command
from trainer.formats.logs.log_lines import perplexity
from trainer.loop.observer import Observer, Step
from trainer.loop.rewind import Point, set_aside_beyond
from trainer.recipe.options import Options, OptionsError
from trainer.recipe.sizes import Speed


class WandbWriter:
    """Points of one start as one run of wandb. Those over samples and tokens are left out: it has axes of its own."""

    def __init__(self, options: Options) -> None:
        """Raise OptionsError if the package, the folder or, for an online run, a key is missing. Needs no network."""
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

    # Send only curves and options, nothing about the machine or the repository.
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


GIGA = 1e9


class ScalarWriter(Protocol):
    """The needed part of torch's SummaryWriter."""

    def add_scalar(self, tag: str, value: float, step: int) -> Any:
        """One point at `step`: iterations, samples or tokens, as the tag says."""

    def flush(self) -> Any:
        """Put on disk what is queued."""

    def close(self) -> Any:
        """Flush, and take no more points."""


def open_writer(options: Options) -> ScalarWriter:
    """Return a writer into --tensorboard-dir, even if that is moved. Raises OptionsError when it cannot be written."""
    from torch.utils.tensorboard import SummaryWriter

    folder = Path(options.tensorboard_dir)
    try:
        make_folder(folder)
        there = set(folder.iterdir())
        # It opens its file again for every few points, by the given path.
        writer: ScalarWriter = SummaryWriter(str(HeldFolder(folder).place()), max_queue=options.tensorboard_queue_size)
        for made in set(folder.iterdir()) - there:
            be_as_open_as_its_folder(made)
    except OSError as error:
        raise OptionsError(f"--tensorboard-dir {folder}: {error.strerror}") from None
    return writer


def open_writers(options: Options, continued_from: Progress | None = None) -> tuple[ScalarWriter, ...]:
    """Open all writers that the options request. Raises OptionsError.

    continued_from: where the training continues. Points after it are trained again, so those in the folder are set
    aside.
    """
    writers: list[ScalarWriter] = []
    if options.tensorboard_dir:
        if continued_from is not None:
            _set_aside_beyond(Path(options.tensorboard_dir), continued_from)
        writers.append(open_writer(options))
    if options.wandb_project:
        writers.append(WandbWriter(options))
    return tuple(writers)


def _set_aside_beyond(folder: Path, at: Progress) -> None:
    """No curve is worth a training that would continue: print a line if a file cannot be changed."""
    try:
        set_aside_beyond(folder, Point(at.iteration, at.consumed_train_samples, at.consumed_train_tokens))
    except Exception as error:  # also tensorboard's own, for a file that another process removes meanwhile
        complain(f"trainer: TensorBoard shows iterations after {at.iteration} twice: {folder}: {error}")


class Curves(Observer):
    """The curves of one training: points after each step, and those of other observers, for every writer."""

    def __init__(
        self,
        writers: Sequence[ScalarWriter],
        options: Options,
        world_size: int,
        data_size: int,
        flops_per_sample: float,
    ) -> None:
        self._writers = writers
        self._options = options
        self._world_size = world_size
        self._data_size = data_size
        self._flops_per_sample = flops_per_sample  # 6 x parameters without embeddings x tokens

    def after_step(self, step: Step) -> None:
        """One point of what one iteration measured; a loss that is no finite number leaves a gap, as in the log.

        A step that was skipped on request leaves a gap in all curves.
        """
        options, at, result = self._options, step.progress, step.result
        wanted = options.tensorboard_dir or options.wandb_project
        if result is None or not wanted or at.iteration % options.tensorboard_log_interval:
            return
        params_norm = step.parameters_norm if options.log_params_norm else None  # on all ranks, or none gets it
        if not self._writers:
            return
        self._add("steps-vs-samples/y=steps,x=samples", at.iteration, at.consumed_train_samples)
        self._add("steps-vs-samples/y=samples,x=steps", at.consumed_train_samples, at.iteration)
        self._add("steps-vs-tokens/y=steps,x=tokens", at.iteration, at.consumed_train_tokens)
        self._add("steps-vs-tokens/y=tokens,x=steps", at.consumed_train_tokens, at.iteration)
        if not options.no_log_learnig_rate_to_tensorboard:
            self._three("learning-rate/learning-rate", step.learning_rate, at)
        if options.log_batch_size_to_tensorboard:
            self._add("batch-size/batch-size", step.batch_size, at.iteration)
            self._add("batch-size/batch-size vs samples", step.batch_size, at.consumed_train_samples)
        if math.isfinite(result.loss):
            self._three("lm-loss-training/lm loss", result.loss, at, gigaflos=True)
        if result.loss_scale is not None and not options.no_log_loss_scale_to_tensorboard:
            self._three("loss-scale/loss-scale", result.loss_scale, at)
        self._three("grad-norm/grad-norm", result.gradient_norm, at)
        if params_norm is not None:
            self._three("params-norm/params-norm", params_norm, at)

    def speed(self, at: Progress, seconds_per_iteration: float, samples_per_second: float, speed: Speed) -> None:
        """Write the speed of the iterations of one log line."""
        self._three("iteration-time/iteration-time", seconds_per_iteration, at)
        tokens_per_second = samples_per_second * self._options.seq_length
        for name, value in (
            ("samples per second", samples_per_second),
            ("samples per second per replica", samples_per_second / self._data_size),
            ("tokens per second", tokens_per_second),
            ("tokens per second per replica", tokens_per_second / self._data_size),
            ("tokens per second per gpu", speed.tokens_per_second),
            ("TFLOPs per gpu (estimated)", speed.hardware_tflops),
            ("model TFLOPs per gpu", speed.model_tflops),
            *(() if speed.mfu is None else (("MFU", speed.mfu),)),
            ("world_size", float(self._world_size)),
        ):
            self._add(f"iteration-time/{name}", value, at.iteration)

    def times(self, milliseconds: dict[str, float], at: Progress) -> None:
        """Write the times of a save or an evaluation, with --log-timers-to-tensorboard."""
        if self._options.log_timers_to_tensorboard:
            for name, value in milliseconds.items():
                self._add(f"time/{name}-time", value / 1000, at.iteration)

    def validation(self, group: str, loss: float, at: Progress, data: str = "val") -> None:
        """One evaluation of one group, of the validation data or (`test`) of the test data."""
        kind = "validation" if data == "val" else data
        tag = f"lm-loss-{kind}/{group}/lm loss {kind}"
        self._three(tag, loss, at, gigaflos=True)
        if self._options.log_validation_ppl_to_tensorboard:
            self._three(f"{tag} ppl", perplexity(loss), at, gigaflos=True)
        for writer in self._writers:
            writer.flush()

    def after_going_back(self, progress: Progress) -> None:
        """Continue in another file, without the points that came after the checkpoint."""
        if not self._writers:
            return
        self.close()
        try:
            self._writers = open_writers(self._options, progress)
        except OptionsError as error:  # no curve is worth a training that would continue
            complain(f"trainer: no curves from here on: {error}")
            self._writers = ()

    def close(self) -> None:
        """Close the writers, which puts their last points on disk."""
        for writer in self._writers:
            writer.close()

    def _three(self, tag: str, value: float, at: Progress, gigaflos: bool = False) -> None:
        self._add(tag, value, at.iteration)
        self._add(f"{tag} vs samples", value, at.consumed_train_samples)
        self._add(f"{tag} vs tokens", value, at.consumed_train_tokens)
        if gigaflos:
            done = at.consumed_train_samples * self._flops_per_sample / GIGA
            self._add(f"{tag} vs gigaflos (without embeddings)", value, int(done))

    def _add(self, tag: str, value: float, step: int) -> None:
        for writer in self._writers:
            writer.add_scalar(tag, value, step)
