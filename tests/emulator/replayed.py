"""Launches of tests once more under sanitizers, in a process of their own.

    with recording(tmp_path / "launches") as runner:      # a KernelRunner: launches run as ever, and are written down
        softmax_forward(runner, ...)
    complaint = replay(csrc_folder() / "cuda" / "softmax.cu", tmp_path / "launches", Sanitizer.MEMORY)
    assert complaint is None, complaint

MEMORY sees what is read or written beside a buffer or shared array, and undefined behaviour. RACES sees two threads of
a block, or two blocks, that touch the same bytes, one of them writing, without a barrier between them.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import gc
import math
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from io import BufferedWriter
from pathlib import Path
from typing import NamedTuple

import torch

from tests.emulator.runner import ORDERS, EmulatedRunner, build_program, kernels_in
from trainer.kernels.native.artifacts import csrc_folder, kernel_sources
from trainer.kernels.native.launching import Argument, Launch

_REPLAY = Path(__file__).with_name("replay.cpp")
_RUN_S = 300
#: Of a session of tests, the folder that launches are to be kept in.
RECORD_VARIABLE = "OPSCTL_RECORD_LAUNCHES"
#: `opsctl kernels check` does.
_LAUNCHED_ELSEWHERE = {"smoke_f32"}
_MOST_KEPT = 2
_MOST_THREADS = 16_384
_MOST_BYTES = 4 << 20
_LARGEST_TABLE = 64 << 10
_LOWEST_ADDRESS = 1 << 16


class Sanitizer(Enum):
    """The errors that a replay searches for; the value is the compiler's name."""

    MEMORY = "address,undefined"
    RACES = "thread"


#: How many blocks of a launch run: each of its threads is a tenth of a millisecond to ThreadSanitizer.
_BLOCKS = {Sanitizer.MEMORY: 1 << 40, Sanitizer.RACES: 3}


#: The one is compiled in a third of the time so, the other runs in a third of it.
_OPTIMIZED = {Sanitizer.MEMORY: "-O0", Sanitizer.RACES: "-O1"}


class RecordingRunner(EmulatedRunner):
    """An `EmulatedRunner` that writes each launch with its buffers' contents into a file before it runs it.

    A buffer is the whole storage of a torch tensor: other memory is not known. Raises LookupError for it.
    """

    def __init__(self, file: BufferedWriter, *sources: Path) -> None:
        super().__init__(*sources)
        self._file = file

    def launch(self, launch: Launch) -> None:
        """Write it down, and run it."""
        self._file.write(record(launch))
        super().launch(launch)


class LaunchKeeper:
    """Keeps the first small launches of each kernel in `FOLDER/FILE.launches`; see `EmulatedRunner.listener`.

    FILE is the kernel's `.cu` file. Launches with memory that is no tensor's are not kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: Counter[str] = Counter()
        self._wanted = {name for source in kernel_sources(csrc_folder()) for name in kernels_in(source)}

    @property
    def has_all(self) -> bool:
        """Return whether a launch of each kernel is kept."""
        return self._wanted - _LAUNCHED_ELSEWHERE <= set(self._kept)

    def __call__(self, launch: Launch, source: Path) -> None:
        """Keep it where it is one of the first."""
        blocks, threads = (math.prod(sizes) for sizes in (launch.grid, launch.block))
        if self._kept[launch.kernel] >= _MOST_KEPT or blocks * threads > _MOST_THREADS:
            return
        with contextlib.suppress(LookupError):
            written = record(launch)
            if len(written) <= _MOST_BYTES:
                with (self._folder / f"{source.stem}.launches").open("ab") as file:
                    file.write(written)
                self._kept[launch.kernel] += 1


@contextlib.contextmanager
def recording(path: Path, *sources: Path) -> Iterator[RecordingRunner]:
    """A runner whose launches are in the file `path` afterwards. sources: its kernels, all of `csrc/cuda` without."""
    with path.open("wb") as file:
        yield RecordingRunner(file, *sources)


def replay(source: Path, launches: Path, sanitizer: Sanitizer, order: str = "random", seed: int = 0) -> str | None:
    """Run the launches of a file, all of kernels of `source`, under a sanitizer; what it complains of, or None."""
    # As memory is at random addresses, ThreadSanitizer's own may be taken on newer kernels.
    program = build_program(
        source, _REPLAY, (f"-fsanitize={sanitizer.value}", "-fno-sanitize-recover=all", "-g1", _OPTIMIZED[sanitizer])
    )
    options = ["ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0", "TSAN_OPTIONS=halt_on_error=1"]
    words = (str(launches), str(ORDERS.index(order)), str(seed), str(_BLOCKS[sanitizer]))
    command = ["setarch", "-R", "env", *options, str(program), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RUN_S, check=False)
    return None if done.returncode == 0 else done.stderr + done.stdout or f"exit code {done.returncode}"


def record(launch: Launch) -> bytes:
    """The launch as `replay.cpp` reads it, with its buffers as they are now. Raises LookupError.

    A number in a tensor of int64 that is an address in another tensor is taken for one: tables of tensors have such.
    """
    known = _storages()
    used: list[_Storage] = []

    def place(address: int) -> tuple[int, int]:
        found = _storage_at(address, known)
        if found not in used:
            used.append(found)
        return used.index(found), address - found.begin

    arguments = [
        place(one.value) if isinstance(one, ctypes.c_void_p) and one.value else (-1, _bits(one))
        for one in launch.arguments
    ]
    inside = []
    for number, storage in enumerate(used):  # which grows meanwhile
        for offset, address in storage.addresses():
            with contextlib.suppress(LookupError):
                inside.append((number, offset, *place(address)))
    name = launch.kernel.encode()
    parts = [struct.pack("<q", len(name)), name]
    parts.append(struct.pack("<8q", *launch.grid, *launch.block, launch.shared_bytes, len(used)))
    for storage in used:
        parts += [struct.pack("<q", storage.size), ctypes.string_at(storage.begin, storage.size)]
    for table in (inside, arguments):
        parts.append(struct.pack("<q", len(table)))
        parts += [struct.pack(f"<{len(one)}q", *one) for one in table]
    return b"".join(parts)


class _Storage(NamedTuple):
    """The memory of living tensors. may_hold_addresses: one of them is of int64."""

    begin: int
    size: int
    may_hold_addresses: bool

    def addresses(self) -> list[tuple[int, int]]:
        """(offset, number) of each number that could be an address."""
        if not self.may_hold_addresses or self.size > _LARGEST_TABLE:
            return []
        count = self.size // 8
        numbers = struct.unpack(f"<{count}q", ctypes.string_at(self.begin, 8 * count))
        return [(8 * at, number) for at, number in enumerate(numbers) if number > _LOWEST_ADDRESS]


def _storages() -> list[_Storage]:
    """Of all living tensors, by where they begin."""
    found: dict[int, _Storage] = {}
    for one in gc.get_objects():
        if issubclass(type(one), torch.Tensor) and one.device.type == "cpu" and one.layout is torch.strided:
            storage = one.untyped_storage()
            try:
                begin, size = storage.data_ptr(), storage.nbytes()
            except RuntimeError:  # one of torch's that only stand for a tensor, which other tests may have left
                continue
            if begin and size:
                is_table = one.dtype is torch.int64 or (begin in found and found[begin].may_hold_addresses)
                found[begin] = _Storage(begin, size, is_table)
    return sorted(found.values())


def _storage_at(address: int, known: list[_Storage]) -> _Storage:
    at = bisect.bisect_right(known, address, key=lambda one: one.begin) - 1
    if at >= 0 and address < known[at].begin + known[at].size:
        return known[at]
    raise LookupError(f"no tensor has the address {address:#x}; what is recorded is given as tensors")


def _bits(argument: Argument) -> int:
    return int.from_bytes(bytes(argument).ljust(8, b"\0"), "little", signed=True)
