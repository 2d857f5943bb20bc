"""Loading the latest checkpoint, after checking that it is whole and belongs to this training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.agreement import Refusal, from_first_rank, on_every_rank
from trainer.checkpoint.read import read_data
from trainer.formats.errors import CheckpointError
from trainer.formats.fallback import FellBack, fall_back
from trainer.formats.log_lines import CheckpointLoaded, write_checkpoint_line, write_fresh_start
from trainer.formats.manifest import LATEST, WAY_OUT, Found, check_checksums, latest_checkpoint
from trainer.say import say


def find_latest(root: Path, with_checksums: bool = False) -> Found | None:
    """The checkpoint that `root/latest` names, looked over; None where there is no checkpoint at all.

    Collective. Raises Refusal.
    """
    found = from_first_rank(lambda: latest_checkpoint(root), (CheckpointError,))
    if found is None:
        if dist.get_rank() == 0:
            say(write_fresh_start(root / LATEST))
        return None
    if with_checksums:
        _check_checksums(found)
    return found


def find_instead_of_a_damaged_one(root: Path, with_checksums: bool) -> FellBack | None:
    """The newest sound checkpoint before the latest of `root`, where that one is damaged; None where it is sound.

    Collective. Raises Refusal where there is no such checkpoint.
    """
    damaged: dict[str, str] = {}
    while True:
        fell_back = from_first_rank(lambda: fall_back(root, damaged), (CheckpointError,))
        found = fell_back.instead if fell_back else from_first_rank(lambda: latest_checkpoint(root), (CheckpointError,))
        if found is None or not with_checksums:
            return fell_back
        try:
            _check_checksums(found)
        except Refusal as refusal:
            damaged[found.folder.name] = str(refusal).partition(WAY_OUT)[0]
        else:
            return fell_back


def _check_checksums(found: Found) -> None:
    """Every rank reads some of the files. Raises Refusal."""
    part, parts = dist.get_rank(), dist.get_world_size()
    on_every_rank(lambda: check_checksums(found.folder, found.manifest, part, parts), (CheckpointError, OSError))


def load_checkpoint(
    engine: PipelineEngine, found: Found, with_optimizer: bool = True, weights_only: bool = False
) -> Mapping[str, Any]:
    """Load what `find_latest` found into the engine; returns the client state saved with it.

    Collective. Raises CheckpointError.
    """
    folder = found.folder
    try:
        with _reading_data_only(engine):
            path, client_state = engine.load_checkpoint(
                str(folder.parent),
                tag=folder.name,
                load_optimizer_states=with_optimizer and not weights_only,
                load_lr_scheduler_states=False,
                load_module_only=weights_only,
            )
    except (OSError, EOFError, KeyError, RuntimeError, ValueError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{folder} cannot be loaded: {reason}") from error
    if path is None:
        raise CheckpointError(f"{folder} cannot be loaded: DeepSpeed found no model states in it")
    if dist.get_rank() == 0:
        say(write_checkpoint_line(CheckpointLoaded(found.manifest.iteration, str(folder.parent))))
    return client_state or {}


@contextlib.contextmanager
def _reading_data_only(engine: PipelineEngine) -> Iterator[None]:
    """DeepSpeed's own reader runs whatever a file asks for."""
    usual: Any = engine.checkpoint_engine
    usual.load = read_data
    try:
        yield
    finally:
        del usual.load
