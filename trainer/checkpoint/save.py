"""Crash-safe saving of a checkpoint: snapshot, write, publish. After a crash at any moment, one can be loaded.

All files are written and fsynced in a folder whose name begins with `.tmp-` and is unique to the save. Then follow the
manifest, the rename to `global_stepN`, and last the rename of `latest`. DeepSpeed alone writes `latest` before the
last rank is done.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.destination import Destination
from trainer.checkpoint.publish import make_room, publish, write
from trainer.core.console import say
from trainer.engine.snapshot import HostCopies, snapshot
from trainer.formats.checkpoint.manifest import Manifest, SavedFile
from trainer.formats.errors import CheckpointError
from trainer.formats.logs.log_lines import CheckpointSaved, CheckpointSaving, write_checkpoint_line

# If cores are scarce, the training's threads have priority over this one.
_NICE = 10
#: The result of `write`: the files that this rank has written, by name.
Written = Mapping[str, SavedFile]


class BackgroundWrite:
    """A `write` in a daemon thread, which does not keep the process alive. Its result is kept."""

    def __init__(self, write: Callable[[], Written]) -> None:
        self._write = write
        self._written: Written | None = None
        self._error: CheckpointError | None = None
        self.milliseconds = 0.0
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        started = time.monotonic()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            self._written = self._write()
        except CheckpointError as error:
            self._error = error
        except Exception as error:  # any error must reach the training thread
            self._error = CheckpointError(f"cannot write a checkpoint: {type(error).__name__}: {error}")
        self.milliseconds = (time.monotonic() - started) * 1000

    def is_done(self) -> bool:
        """Return True if it has ended, with or without an error."""
        return not self._thread.is_alive()

    def result(self) -> Written:
        """Return the written files when the write ends. Raises CheckpointError."""
        self._thread.join()
        if self._written is None:
            raise self._error or CheckpointError("cannot write a checkpoint: its thread has ended")
        return self._written


@dataclass(frozen=True)
class SaveTimes:
    """The times of a save, in milliseconds."""

    stall: float  # during which the training waited
    background: float | None = None  # of the rank that wrote longest in the background; None: none did


class SaveUnderWay:
    """One checkpoint from its snapshot to its publication. It is the same one on every rank."""

    def __init__(
        self,
        destination: Destination,
        name: str,
        manifest: Manifest,
        write: BackgroundWrite,
        stall_ms: float,
        device: torch.device,
    ) -> None:
        self._destination, self._name, self._manifest, self._write = destination, name, manifest, write
        self._stall_ms, self._device = stall_ms, device

    @property
    def iteration(self) -> int:
        """The iteration of the checkpoint."""
        return self._manifest.iteration

    @property
    def folder(self) -> str:
        """The folder of the checkpoints, as the user gave it."""
        return str(self._destination.folder.path)

    def is_written(self) -> bool:
        """Return True if every rank has ended its write. Collective: one small all-reduce."""
        return self._largest(float(not self._write.is_done())) == 0

    def publish(self) -> SaveTimes:
        """Wait until every rank has written, and make it the latest checkpoint. Collective; raises as `publish`."""
        started = time.monotonic()
        publish(self._destination, self._name, self._manifest, self._write.result)
        background_ms = self._largest(self._write.milliseconds)
        if dist.get_rank() == 0:
            say(write_checkpoint_line(CheckpointSaved(self.iteration, self.folder)))
        return SaveTimes(self._stall_ms + (time.monotonic() - started) * 1000, background_ms)

    def _largest(self, value: float) -> float:
        values = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return float(values)


def save_checkpoint(
    engine: PipelineEngine,
    destination: Destination,
    manifest: Manifest,
    client_state: Mapping[str, Any],
    with_optimizer: bool = True,
) -> SaveTimes:
    """Save as `global_stepN` and make it the latest. Collective.

    `manifest` has no files yet. `client_state` goes into DeepSpeed's own files and must be plain data. Raises Refusal
    on every rank if one of them could not write, and Overtaken if another writer has this training. No files of the
    save remain then.
    """
    started = time.monotonic()
    name = _make_room(destination, manifest)
    taken = snapshot(engine, client_state, with_optimizer)
    publish(destination, name, manifest, lambda: write(taken, destination.folder.place() / name))
    if dist.get_rank() == 0:
        say(write_checkpoint_line(CheckpointSaved(manifest.iteration, str(destination.folder.path))))
    return SaveTimes(_milliseconds_since(started))


def begin_save(
    engine: PipelineEngine,
    destination: Destination,
    manifest: Manifest,
    client_state: Mapping[str, Any],
    copies: HostCopies,
    with_optimizer: bool = True,
) -> SaveUnderWay:
    """Begin a save. The training may continue, and publishes it when it is written. Collective.

    The next save with the same `copies` may begin after this one is published or abandoned. Raises Refusal and
    Overtaken as `save_checkpoint` does.
    """
    started = time.monotonic()
    name = _make_room(destination, manifest)
    taken = snapshot(engine, client_state, with_optimizer, copies)
    write_beside = BackgroundWrite(lambda: write(taken, destination.folder.place() / name))
    stall_ms = _milliseconds_since(started)
    return SaveUnderWay(destination, name, manifest, write_beside, stall_ms, engine.device)


def _make_room(destination: Destination, manifest: Manifest) -> str:
    if dist.get_rank() == 0:
        say(write_checkpoint_line(CheckpointSaving(manifest.iteration, str(destination.folder.path))))
    return make_room(destination, manifest.iteration)


def _milliseconds_since(started: float) -> float:
    return (time.monotonic() - started) * 1000
