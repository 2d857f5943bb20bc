"""The artifacts that can be built, with the sources and settings of each: pure, except for reading the sources."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_INCLUDED = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def csrc_folder() -> Path:
    """Return `csrc`: next to the packages in a checkout, inside opsctl's in an installed wheel."""
    packages = Path(__file__).resolve().parents[3]
    inside = packages / "opsctl" / "_shipped" / "csrc"
    return inside if inside.is_dir() else packages / "csrc"


def kernel_sources(csrc: Path) -> tuple[Path, ...]:
    """Return the `.cu` files, each of which becomes one cubin per architecture."""
    return tuple(sorted((csrc / "cuda").glob("*.cu")))


def library_sources(csrc: Path, folder: str) -> tuple[Path, ...]:
    """Return the `.cpp` files of `csrc/folder`, which become one library."""
    return tuple(sorted((csrc / folder).glob("*.cpp")))


def with_included(sources: Sequence[Path]) -> tuple[Path, ...]:
    """Return `sources` and every file of ours that they include by `"name"`, at any depth, always in the same order.

    A name that is not a file is left to the compiler. Raises OSError.
    """
    found: dict[Path, None] = {}
    todo = [source.resolve() for source in sources]
    while todo:
        source = todo.pop()
        if source in found:
            continue
        found[source] = None
        for name in _INCLUDED.findall(source.read_bytes()):
            included = (source.parent / name.decode(errors="replace")).resolve()
            if included.is_file():
                todo.append(included)
    return tuple(sorted(found))


#: Flags of every CUDA compiler. Divisions and roots are exact, denormals stay.
CUDA_FLAGS = ("-std=c++17", "-fmad=false")
#: All levels of x86-64 give equal bits, because products and sums are fused only if a source requests it.
_CXX_FLAGS = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC"),
    *("-fvisibility=hidden", "-fno-gnu-unique", "-Wall", "-Wextra", "-Wno-unknown-pragmas"),
)
#: The chips of a build that names none: V100, A100, H100.
ARCHITECTURES = ("sm_70", "sm_80", "sm_90")
#: Level of a CPU -> its flags in /proc/cpuinfo, from the highest down.
_X86_LEVELS = {
    "x86-64-v4": {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
    "x86-64-v3": {"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"},
    "x86-64-v2": {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"},
}
#: The libraries: name -> whether it has threads by OpenMP.
LIBRARIES = {"operations": True, "data": False}
_FOLDER_OF = {"operations": "cpu", "data": "data"}


@dataclass(frozen=True)
class Artifact:
    """A library for a CPU's level, or all kernels for an architecture.

    key: hash of all that a job knows without a compiler: sources, flags, torch's version, the architecture.
    """

    name: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    key: str

    @property
    def is_cuda(self) -> bool:
        """Return whether it contains kernels for a GPU."""
        return self.name.startswith("cuda-")

    @property
    def target(self) -> str:
        """The architecture, or the CPU's level."""
        return self.name.partition("-")[2]


def cuda_artifact(architecture: str) -> Artifact | None:
    """Return the kernels for `sm_NN`; None if this version has none. Raises OSError for sources that cannot be read."""
    return _artifact(f"cuda-{architecture}", kernel_sources(csrc_folder()), CUDA_FLAGS)


def library_artifact(library: str, level: str) -> Artifact | None:
    """Return a library of LIBRARIES for a CPU's level; None if this version has no sources of it. Raises OSError."""
    threads = ("-fopenmp",) if LIBRARIES[library] else ()
    flags = (*_CXX_FLAGS, f"-march={level}", *threads)
    return _artifact(f"{library}-{level}", library_sources(csrc_folder(), _FOLDER_OF[library]), flags)


def library_artifacts(levels: tuple[str, ...]) -> Iterator[Artifact]:
    """Yield every library for each of `levels`."""
    for library in LIBRARIES:
        for level in levels:
            artifact = library_artifact(library, level)
            if artifact:
                yield artifact


def every_level() -> tuple[str, ...]:
    """Return the levels of this machine's kind of CPU, the highest first: nodes of a cluster differ."""
    return tuple(_X86_LEVELS) if platform.machine() == "x86_64" else ("native",)


@functools.cache
def own_levels() -> tuple[str, ...]:
    """Return the levels that this CPU has, the highest first."""
    if platform.machine() != "x86_64":
        return ("native",)
    try:
        described = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    found = re.search(r"^flags\s*:(.*)$", described, re.MULTILINE)
    return levels_of(set(found[1].split()) if found else set())


def levels_of(flags: set[str]) -> tuple[str, ...]:
    """Return the levels of a CPU with these flags of /proc/cpuinfo, the highest first. Each includes those below it."""
    rising = list(reversed(_X86_LEVELS.items()))
    had = 0
    while had < len(rising) and rising[had][1] <= flags:
        had += 1
    return tuple(name for name, _ in reversed(rising[:had]))


def flags_of(source: Path) -> tuple[str, ...]:
    """Return a source's own compiler flags, besides its library's: the words after `// flags:` on one of its lines."""
    asked = re.search(r"^// flags: (.*)$", source.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return tuple(asked[1].split()) if asked else ()


def torch_version() -> str:
    """Return torch's version from its metadata, since importing it takes a second; "none" without torch."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _artifact(name: str, sources: tuple[Path, ...], flags: tuple[str, ...]) -> Artifact | None:
    if not sources:
        return None
    digest = hashlib.sha256(repr((name, flags, torch_version())).encode())
    for file in with_included(sources):
        digest.update(f"{file.parent.name}/{file.name}\0".encode() + file.read_bytes() + b"\0")
    return Artifact(name, sources, flags, digest.hexdigest()[:24])
