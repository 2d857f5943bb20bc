"""The launch of a kernel as a value, for a GPU's driver or the emulator of the tests."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

#: A ctypes value with its number: `c_void_p(tensor.data_ptr())`, `c_int64(columns)`, `c_float(scale)`.
if TYPE_CHECKING:
    Argument: TypeAlias = ctypes._SimpleCData[Any]
else:
    Argument = ctypes._SimpleCData

WARP_THREADS = 32
MOST_BLOCK_THREADS = 1024
_MOST_GRID = (2**31 - 1, 65_535, 65_535)


@dataclass(frozen=True)
class Launch:
    """One kernel over a grid of blocks, with its arguments in the order of the kernel's parameters.

    grid: blocks in x, y and z. block: threads in x, y and z, at most 1024 in all. shared_bytes: of dynamic shared
    memory, per block. Raises ValueError for sizes that no GPU takes.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[Argument, ...]

    def __post_init__(self) -> None:
        if not all(0 < size <= most for size, most in zip(self.grid, _MOST_GRID, strict=True)):
            raise ValueError(f"{self.kernel}: a grid of {self.grid} blocks, not 1 to {_MOST_GRID}")
        if min(self.block) < 1 or math.prod(self.block) > MOST_BLOCK_THREADS:
            raise ValueError(f"{self.kernel}: a block of {self.block} threads, where {MOST_BLOCK_THREADS} is the most")
        if self.shared_bytes < 0:
            raise ValueError(f"{self.kernel}: {self.shared_bytes} bytes of shared memory")


@dataclass(frozen=True)
class DeviceFacts:
    """The facts for planning launches.

    shared_bytes_per_block: the most that one block may request, static and dynamic, by an explicit attribute.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    threads_per_multiprocessor: int
    registers_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block: int
    l2_bytes: int


class KernelRunner(Protocol):
    """A device, real or emulated, that runs launches."""

    @property
    def facts(self) -> DeviceFacts:
        """The facts of the device."""
        ...

    def launch(self, launch: Launch) -> None:
        """Start a kernel after all earlier ones. Raises KernelError."""
        ...


class KernelError(RuntimeError):
    """A kernel cannot be started, or has done something undefined."""


def argument_pointers(arguments: tuple[Argument, ...]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the arguments' addresses, as CUDA's driver and the emulator expect them; keeps the arguments alive."""
    pointers = (ctypes.c_void_p * max(1, len(arguments)))(*map(ctypes.addressof, arguments))
    pointers.held = arguments  # type: ignore[attr-defined]
    return pointers
