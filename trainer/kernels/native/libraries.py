"""The libraries of C++ functions, loaded by ctypes if they were built; nothing here compiles.

    loaded = operations()
    if isinstance(loaded, NotBuilt): ...   # loaded.why, in one line

Arrays are given as addresses (`c_void_p(tensor.data_ptr())`); a call releases the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path

from trainer.kernels.native.artifacts import cuda_artifact, library_artifact, own_levels
from trainer.kernels.native.cache import CacheError, cache_folders, find, is_empty

BUILD = "opsctl kernels build"


@dataclass(frozen=True)
class NotBuilt:
    """The reason why a compiled library or kernel cannot be used."""

    why: str


@functools.cache
def operations() -> ctypes.CDLL | NotBuilt:
    """Return the operations for the CPU (`csrc/cpu`). Import torch before: they use its OpenMP threads."""
    return load_library("operations")


@functools.cache
def data() -> ctypes.CDLL | NotBuilt:
    """Return the functions of the data path (`csrc/data`)."""
    return load_library("data")


def load_library(library: str) -> ctypes.CDLL | NotBuilt:
    """Load the build of the present sources for the highest level that this CPU has."""
    try:
        for level in () if is_empty() else own_levels():
            artifact = library_artifact(library, level)
            built = find(artifact) if artifact else None
            if built:
                return ctypes.CDLL(str(built.folder / library_file(library)))
    except (CacheError, OSError) as error:
        return NotBuilt(str(error))
    if not own_levels():
        return NotBuilt("this CPU is older than x86-64-v2")
    return NotBuilt(f"not built here ({', '.join(map(str, cache_folders()))}): {BUILD}")


def library_file(library: str) -> str:
    """Return the file's name in its folder of the cache."""
    return f"lib{library}.so"


@dataclass(frozen=True)
class Cubins:
    """Kernels of one architecture (`sm_80`). files: name of a kernel -> the cubin that it is in."""

    architecture: str
    files: dict[str, Path]


def cubins_for(capability: tuple[int, int]) -> Cubins | NotBuilt:
    """Return the cubins for a GPU of this compute capability: built for it, or for an earlier one of its generation."""
    major, minor = capability
    try:
        for earlier in () if is_empty() else range(minor, -1, -1):
            artifact = cuda_artifact(f"sm_{major}{earlier}")
            built = find(artifact) if artifact else None
            if built:
                files = {kernel: built.folder / facts["file"] for kernel, facts in built.kernels.items()}
                return Cubins(f"sm_{major}{earlier}", files)
    except (CacheError, OSError) as error:
        return NotBuilt(str(error))
    where = ", ".join(map(str, cache_folders()))
    return NotBuilt(f"no kernels for sm_{major}{minor} were built here ({where}): {BUILD} --arch {major}.{minor}")
