"""Running CUDA kernels on the CPU: what `tests/emulator` makes of a `.cu` file, and launches of it in a chosen order.

    runner = EmulatedRunner(csrc_folder() / "cuda" / "norms.cu", order=order)   # for order in ORDERS
    runner.launch(Launch("norm_f32", (rows, 1, 1), (128, 1, 1), 0, (pointer(out), pointer(x), c_int64(columns))))

A library is built once for its sources and compiler, and kept for later sessions in a folder of this user's.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from trainer.kernels.native.artifacts import csrc_folder, kernel_sources, with_included
from trainer.kernels.native.launching import DeviceFacts, KernelError, Launch, argument_pointers

EMULATOR = Path(__file__).resolve().parent
_PARTS = ("blocks", "fibers", "meetings", "shared_memory")

#: In which the threads of a block take turns. A bug may show in one of them only, so what matters runs in all.
ORDERS = ("forward", "reverse", "random", "warps_ahead", "warps_ahead_reverse")

#: Like an A100's, with few multiprocessors: grids that are made for them stay small.
SMALL_GPU = DeviceFacts(
    name="emulated",
    capability=(8, 0),
    multiprocessors=4,
    threads_per_multiprocessor=2048,
    registers_per_multiprocessor=65_536,
    shared_bytes_per_multiprocessor=164 << 10,
    shared_bytes_per_block=163 << 10,
    l2_bytes=40 << 20,
)

FLAGS = (
    "-std=c++17 -O2 -ffp-contract=off -fPIC -fvisibility=hidden -fno-gnu-unique -fno-threadsafe-statics"
    " -Wall -Wextra -Wno-unknown-pragmas" + (" -march=x86-64-v3" if platform.machine() == "x86_64" else "")
).split()
_BUILD_S = 300

needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: CUDA kernels cannot be run on the CPU")


class EmulatedRunner:
    """A `KernelRunner` on the CPU. By default it knows all kernels of `csrc/cuda`, each file built when first needed.

    seed: of the random order. Raises KernelError for what the emulator finds, with kernel, thread and place, and for
    arguments that are not of the kernel's parameters' types.
    """

    #: Told of each launch of any runner, and of the file that it is of, before it runs.
    listener: ClassVar[Callable[[Launch, Path], None] | None] = None

    def __init__(self, *sources: Path, order: str = "forward", seed: int = 0, facts: DeviceFacts = SMALL_GPU) -> None:
        self.facts = facts
        self.launched: list[Launch] = []
        self._sources = sources or kernel_sources(csrc_folder())
        self._order = ORDERS.index(order)
        self._seed = seed

    def launch(self, launch: Launch) -> None:
        """Run it to its end."""
        self.launched.append(launch)
        if launch.shared_bytes > self.facts.shared_bytes_per_block:
            most = self.facts.shared_bytes_per_block
            raise KernelError(
                f"{launch.kernel}: {launch.shared_bytes} bytes of shared memory, where {most} is the most"
            )
        source = self.source_of(launch.kernel)
        if EmulatedRunner.listener:
            EmulatedRunner.listener(launch, source)
        library = _loaded(source)
        wanted = signature(library, launch.kernel)
        given = "".join(vars(type(argument))["_type_"] for argument in launch.arguments)
        if _alike(given) != _alike(wanted):
            raise KernelError(f"{launch.kernel}: arguments of types {given!r} where it takes {wanted!r}")
        message = ctypes.create_string_buffer(1024)
        failed = library.emulator_launch(
            getattr(library, f"{launch.kernel}__call"),
            (ctypes.c_int64 * 6)(*launch.grid, *launch.block),
            ctypes.c_int64(launch.shared_bytes),
            argument_pointers(launch.arguments),
            ctypes.c_int(self._order),
            ctypes.c_uint64(self._seed),
            ctypes.c_int64(math.prod(launch.grid)),
            launch.kernel.encode(),
            message,
            ctypes.c_int64(len(message)),
        )
        if failed:
            raise KernelError(message.value.decode())

    def source_of(self, kernel: str) -> Path:
        """The `.cu` file that has it. Raises KernelError."""
        for source in self._sources:
            if hasattr(_loaded(source), f"{kernel}__call"):
                return source
        names = ", ".join(source.name for source in self._sources)
        raise KernelError(f"{kernel}: no such kernel in {names}; is there an EXPORT({kernel})?")


def pointer(array: np.ndarray | None) -> ctypes.c_void_p:
    """A kernel's argument: where a numpy array's numbers are (of a tensor: `c_void_p(tensor.data_ptr())`)."""
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def kernels_in(source: Path) -> set[str]:
    """The names of the kernels that a `.cu` file exports."""
    command = ["nm", "-D", str(build_emulated(source))]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    return set(re.findall(r" T (\w+)__call$", listed, re.MULTILINE))


def signature(library: ctypes.CDLL, kernel: str) -> str:
    """ctypes' letters for the types of a kernel's parameters."""
    function = getattr(library, f"{kernel}__signature")
    function.restype = ctypes.c_char_p
    return str(function().decode())


def build_emulated(source: Path, flags: tuple[str, ...] = ()) -> Path:
    """The library of one `.cu` file. flags: more for the compiler, as a sanitizer's. Raises CalledProcessError."""
    return _built(source, ".so", flags, ("-shared", *_included_from()), _emulator_objects(flags))


def build_program(source: Path, main: Path, flags: tuple[str, ...]) -> Path:
    """A program of one `.cu` file, the emulator and a file with `main`. Raises CalledProcessError."""
    # The emulator's own accesses are no thread's: anyone who looks for races would take them for such.
    plain = ("-fno-sanitize=thread", "-D__SANITIZE_THREAD__") if "-fsanitize=thread" in flags else ()
    objects = [*_emulator_objects((*flags, *plain)), _built(main, ".o", flags, ("-c",))]
    return _built(source, "", flags, ("-rdynamic", *_included_from()), objects)


def _emulator_objects(flags: tuple[str, ...]) -> list[Path]:
    return [_built(EMULATOR / f"{name}.cpp", ".o", flags, ("-c",)) for name in _PARTS]


def _included_from() -> tuple[str, ...]:
    return f"-I{csrc_folder() / 'cuda'}", f"-I{EMULATOR}"


def _built(
    source: Path, suffix: str, flags: tuple[str, ...], how: tuple[str, ...], objects: Sequence[Path] = ()
) -> Path:
    """Return what the compiler makes of a source, if no one has made it yet."""
    digest = hashlib.sha256(repr((FLAGS, flags, how, [one.name for one in objects], _compiler())).encode())
    for file in with_included([source, csrc_folder() / "cuda" / "device.cuh", EMULATOR / "launch.h"]):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    target = _folder() / f"{source.stem}-{digest.hexdigest()[:20]}{suffix}"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tmp-") as folder:
        made = Path(folder) / target.name
        command = ["g++", *FLAGS, *flags, *how, "-o", str(made), *map(str, objects), "-x", "c++", str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_BUILD_S)
        made.rename(target)
    return target


@functools.cache
def _loaded(source: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(build_emulated(source)))


@functools.cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True, timeout=60).stdout


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"opsctl-emulated-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise RuntimeError(f"{folder} is not this user's alone: remove it")
    return folder


def _alike(codes: str) -> str:
    """`long` and `long long` are the same here, and ctypes has a letter for each."""
    return codes.replace("q", "l").replace("Q", "L")
