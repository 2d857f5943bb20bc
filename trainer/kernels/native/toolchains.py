"""Compilers of this machine: where they are, which version, what they can compile for.

Searching runs programs, so only building does it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_ASK_S = 60
#: How to get a compiler that still takes Volta: nvcc 13 and NVRTC 13 refuse sm_70.
NVRTC_12 = "python -m pip install 'nvidia-cuda-nvrtc-cu12<13'"


@dataclass(frozen=True)
class HostCompiler:
    """A C++ compiler. has_openmp: by GCC's own runtime, which is the one that torch's threads are of."""

    path: str
    version: str
    has_openmp: bool


@dataclass(frozen=True)
class Nvcc:
    """NVIDIA's compiler with a toolkit. architectures: as in `sm_80`, of the chips that it compiles for."""

    path: str
    version: str
    architectures: tuple[str, ...]

    @property
    def name(self) -> str:
        """The compiler's name and version."""
        return f"nvcc {self.version}"


@dataclass(frozen=True)
class Nvrtc:
    """NVIDIA's compiler as a library, by itself in a wheel of PyPI's."""

    path: str
    version: str
    architectures: tuple[str, ...]

    @property
    def name(self) -> str:
        """The compiler's name and version."""
        return f"NVRTC {self.version}"


CudaCompiler = Nvcc | Nvrtc


class CompilerError(RuntimeError):
    """A compiler is missing, or refused a source; the text is its message."""


@functools.cache
def host_compiler() -> HostCompiler | None:
    """Return `$CXX`, else g++, else clang++, the first that exists."""
    for name in (*filter(None, [os.environ.get("CXX")]), "g++", "clang++"):
        path = shutil.which(name)
        said = _output_of([path, "--version"]) if path else None
        if path and said:
            return HostCompiler(path, said.splitlines()[0].strip(), has_openmp="clang" not in said)
    return None


@functools.cache
def nvcc() -> Nvcc | None:
    """Return the nvcc of `$CUDA_HOME`, else of the PATH, else of `/usr/local/cuda`."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    for place in (home and f"{home}/bin/nvcc", "nvcc", "/usr/local/cuda/bin/nvcc"):
        path = shutil.which(place) if place else None
        version = re.search(r"\bV(\d+\.\d+\.\d+)", _output_of([path, "--version"]) or "") if path else None
        if path and version:
            listed = re.findall(r"^(?:compute|sm)_(\d+)$", _output_of([path, "--list-gpu-arch"]) or "", re.MULTILINE)
            return Nvcc(path, version[1], tuple(f"sm_{number}" for number in sorted(listed, key=int)))
    return None


@functools.cache
def nvrtcs() -> tuple[Nvrtc, ...]:
    """Return every NVRTC in a wheel of this Python or in `$CUDA_HOME`, the newest first."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    folders = [Path(home) / "lib64"] if home else []
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folders += sorted(Path(place).glob("*/lib"))
    found = (_asked_nvrtc(library) for folder in folders for library in sorted(folder.glob("libnvrtc.so.*")))
    by_version = {one.version: one for one in found if one}
    return tuple(by_version[version] for version in sorted(by_version, key=_numbers, reverse=True))


def cuda_compiler(architecture: str) -> CudaCompiler:
    """Return the compiler for `architecture` (`sm_80`). Raises CompilerError.

    Prefers one of torch's CUDA release, which the driver accepts as it accepts torch; among those nvcc.
    """
    candidates: list[CudaCompiler] = [*filter(None, [nvcc()]), *nvrtcs()]
    major = torch_cuda_major()
    for compiler in sorted(candidates, key=lambda one: one.version.split(".")[0] != major):
        if architecture in compiler.architectures:
            return compiler
    if not candidates:
        raise CompilerError(f"no CUDA compiler here: install a CUDA toolkit (nvcc on the PATH), or {NVRTC_12}")
    names = " and ".join(compiler.name for compiler in candidates)
    raise CompilerError(f"{names} cannot compile for {architecture}; what can: {NVRTC_12}")


def torch_cuda_major() -> str | None:
    """Return the CUDA release of the installed torch ("12"), from its files, since importing it takes a second."""
    spec = importlib.util.find_spec("torch")
    try:
        text = (Path(spec.origin).parent / "version.py").read_text() if spec and spec.origin else ""
    except OSError:
        return None
    found = re.search(r"""^cuda\b[^=]*= *['"](\d+)""", text, re.MULTILINE)
    return found[1] if found else None


def _asked_nvrtc(library: Path) -> Nvrtc | None:
    try:
        loaded = ctypes.CDLL(str(library))
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        if loaded.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)):
            return None
        loaded.nvrtcGetNumSupportedArchs(ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        loaded.nvrtcGetSupportedArchs(numbers)
    except (OSError, AttributeError):
        return None
    return Nvrtc(str(library), f"{major.value}.{minor.value}", tuple(f"sm_{number}" for number in numbers))


def _output_of(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
