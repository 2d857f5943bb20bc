"""The kernels that were built for a GPU, by their names; nothing here compiles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.kernels.native.artifacts import cuda_artifact
from trainer.kernels.native.cache import CacheError, cache_folders, find, is_empty
from trainer.kernels.native.libraries import BUILD, NotBuilt


@dataclass(frozen=True)
class Cubins:
    """Kernels of one architecture (`sm_80`). files: name of a kernel -> the cubin that it is in."""

    architecture: str
    files: dict[str, Path]


def cubins_for(capability: tuple[int, int]) -> Cubins | NotBuilt:
    """What runs on a GPU of this compute capability: built for it, or for an earlier one of its generation."""
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
