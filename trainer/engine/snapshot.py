"""Take this rank's files of a checkpoint from the engine without touching a file, and copy their tensors."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from trainer.formats.checkpoint.partitions import is_weights_file

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

    def are_finite(self) -> bool:
        """Return whether no copied number is NaN or infinite."""
        copied = (one for places in self._kept.values() for one in places if one.is_floating_point() and one.numel())
        return all(bool(torch.stack(torch.aminmax(one)).isfinite().all()) for one in copied)

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
        """Return a copy. A tensor that occurs twice in a state gets the same copy, as torch.save writes it once."""
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
    """Return this rank's files of a checkpoint, with DeepSpeed's names and contents. Collective.

    `client_state` goes into DeepSpeed's own files and must be plain data. Tensors are the engine's own, so a plain
    snapshot must be written before the next step; one layer's weights at a time are copied to the host's memory then.
    With `copies` all tensors are copied to the host's memory, as much as the files hold, and may be written at any time
    before the next snapshot into the same copies.
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
        """Return whether DeepSpeed must copy the weights, which share one storage: no, `save` does it."""
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
