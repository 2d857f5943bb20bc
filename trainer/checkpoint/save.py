"""Saving a checkpoint so that a crash at any moment leaves one that loads: snapshot, write, publish.

Everything is written and fsynced in a folder of this save's own, whose name begins with `.tmp-`; then come the
manifest, the rename to `global_stepN`, and last `latest`, itself by a rename. DeepSpeed alone writes `latest` before
the last rank is done.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from trainer.checkpoint.destination import Destination
from trainer.checkpoint.publish import make_room, publish, write
from trainer.core.console import say
from trainer.formats.checkpoint.manifest import Manifest, SavedFile
from trainer.formats.checkpoint.partitions import is_weights_file
from trainer.formats.errors import CheckpointError
from trainer.formats.logs.log_lines import CheckpointSaved, CheckpointSaving, write_checkpoint_line

#: From this size on a copy out of a GPU is worth memory that the GPU may write to by itself.
_PINNED_FROM_BYTES = 1 << 20
_PLAIN = (int, float, str, bool, bytes, type(None), torch.dtype, torch.Size)


class HostCopies:
    """Keeps the copies of one save until the next one makes its own in their place."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Tensor]] = {}

    def of(self, name: str, state: Any) -> Any:
        """`state` with copies of its tensors and of everything that can change, in the places of the last `name`.

        Copies out of a GPU may still be on their way: see `wait`.
        """
        copying = _Copying(self._kept.get(name, []))
        copied = copying.of(state)
        self._kept[name] = copying.used
        return copied

    def wait(self) -> None:
        """Return when every copy has what it is a copy of."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()


class _Copying:
    """One state's copying: its n-th tensor goes where the last state's n-th one went, if it has that form."""

    def __init__(self, places: list[Tensor]) -> None:
        self._places = places
        self.used: list[Tensor] = []
        self._done: dict[tuple[Any, ...], Tensor] = {}

    def of(self, state: Any) -> Any:
        if isinstance(state, Tensor):
            return self._tensor(state)
        if isinstance(state, dict):
            return type(state)((key, self.of(value)) for key, value in state.items())
        if isinstance(state, list | tuple):
            return type(state)([self.of(value) for value in state])
        return state if isinstance(state, _PLAIN) else copy.deepcopy(state)

    def _tensor(self, tensor: Tensor) -> Tensor:
        """A copy; of what stands in a state twice the same one, as torch.save writes it once."""
        tensor = tensor.detach()
        what = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if what not in self._done or not tensor.numel():
            place = self._place(tensor)
            place.copy_(tensor, non_blocking=True)
            self.used.append(place)
            self._done[what] = place
        return self._done[what]

    def _place(self, tensor: Tensor) -> Tensor:
        number = len(self.used)
        if number < len(self._places):
            place = self._places[number]
            if place.shape == tensor.shape and place.dtype == tensor.dtype:
                return place
        place = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        if tensor.is_cuda and place.nbytes >= _PINNED_FROM_BYTES:
            _pin(place)
        return place


def _pin(place: Tensor) -> None:
    """Let the GPU write to the memory of `place` by itself, for as long as the process lives.

    torch's own pinned memory is rounded up to powers of two, which can be twice what a rank's files take. Where the
    system refuses, the copy is slower and right all the same.
    """
    with contextlib.suppress(RuntimeError):
        torch.cuda.cudart().cudaHostRegister(place.data_ptr(), place.nbytes, 0)


#: File name -> gives what goes into it, plain data and tensors; asked once, as the file is written.
Snapshot = dict[str, Callable[[], Any]]


def snapshot(
    engine: PipelineEngine,
    client_state: Mapping[str, Any],
    with_optimizer: bool = True,
    copies: HostCopies | None = None,
) -> Snapshot:
    """This rank's files of a checkpoint, with DeepSpeed's names and contents. Collective.

    `client_state` goes into DeepSpeed's own files and must be plain data. Tensors are the engine's own, so a plain
    snapshot has to be written before the next step; one layer's weights at a time are copied into the host's memory as
    they are. One with `copies` has all tensors there, in the host's memory, as much as the files hold, and may be
    written whenever there is time, before the next one is taken into the same copies.
    """
    taking = _TakingCheckpointEngine(with_optimizer, copies)
    usual, shards = engine.checkpoint_engine, engine.save_zero_checkpoint
    engine.checkpoint_engine, engine.save_zero_checkpoint = taking, shards and with_optimizer
    engine._copy_recovery_script = lambda _folder: None  # it writes past the checkpoint engine; `publish` leaves them
    try:
        engine.save_checkpoint("snapshot", tag="snapshot", client_state=dict(client_state), save_latest=False)
    finally:
        engine.checkpoint_engine, engine.save_zero_checkpoint = usual, shards
        del engine._copy_recovery_script
    if copies is not None:
        copies.wait()
    return taking.files


class _TakingCheckpointEngine(CheckpointEngine):
    """Stands in for DeepSpeed's writer during one save and keeps what it is handed."""

    def __init__(self, with_optimizer: bool, copies: HostCopies | None) -> None:
        super().__init__()
        self.name = "TakingCheckpointEngine"
        self.files: Snapshot = {}
        self._with_optimizer, self._copies = with_optimizer, copies

    def preserves_storage_sharing(self) -> bool:
        """Whether DeepSpeed has to copy the weights, which share one storage: no, `save` sees to it."""
        return False

    def save(self, state_dict: Any, path: str) -> None:
        if not self._with_optimizer and isinstance(state_dict, dict):
            state_dict = {key: None if key == "optimizer" else value for key, value in state_dict.items()}
        name = Path(path).name
        if self._copies is not None:
            state_dict = self._copies.of(name, state_dict)
        # torch.save writes a tensor's whole storage, and all weights share one.
        shares = self._copies is None and is_weights_file(name)
        self.files[name] = partial(clone_tensors_for_torch_save if shares else _as_it_is, state_dict)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        pass

    def create(self, info: CheckpointCommitInfo) -> None:
        pass

    def commit(self, info: CheckpointCommitInfo) -> bool:
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        raise NotImplementedError("this engine only takes")


def _as_it_is(state: Any) -> Any:
    return state


# Where cores are scarce the training's threads come first: nobody waits for this one.
_NICE = 10
#: What `write` returns: the files that this rank has written, by name.
Written = Mapping[str, SavedFile]


class BackgroundWrite:
    """`write` in a thread of its own, which keeps no process from ending; what came of it waits to be asked for."""

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
        except Exception as error:  # whatever it is, it must reach the thread that trains
            self._error = CheckpointError(f"cannot write a checkpoint: {type(error).__name__}: {error}")
        self.milliseconds = (time.monotonic() - started) * 1000

    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def result(self) -> Written:
        """What was written, once it is. Raises CheckpointError."""
        self._thread.join()
        if self._written is None:
            raise self._error or CheckpointError("cannot write a checkpoint: its thread has ended")
        return self._written


@dataclass(frozen=True)
class SaveTimes:
    """Milliseconds of a save."""

    stall: float  # in which nobody trained
    background: float | None = None  # of the rank that wrote longest beside the training; None: nothing was


class SaveUnderWay:
    """One checkpoint from its snapshot to its publishing. Every rank has the same one."""

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
        """The one that it has."""
        return self._manifest.iteration

    @property
    def folder(self) -> str:
        """That of the checkpoints, as the user gave it."""
        return str(self._destination.folder.path)

    def is_written(self) -> bool:
        """Whether every rank has ended its write. Collective: one small all-reduce."""
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

    `manifest` comes with no files; `client_state` goes into DeepSpeed's own files and must be plain data. Raises
    Refusal on every rank when one of them could not write, Overtaken when another writer has this training: nothing is
    left of the save then.
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
    """Begin what `save_checkpoint` does: the training may go on, and publish it once it is written. Collective.

    Whoever published or gave up what was begun before with the same `copies` may begin another. Raises Refusal and
    Overtaken as well.
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
