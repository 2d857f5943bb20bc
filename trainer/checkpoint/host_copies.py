"""Copies in the host's memory of what a save will write, in places that the next save takes over.

A save allocates nothing once another was made: fresh memory costs more than the copying, page by page, and a training
that allocates anew each time may be the one that has no room left after weeks.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor

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
