"""The built kernels as JSON."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class BuiltArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """One build result: a library for a CPU level, or all kernels for one GPU architecture."""

    name: Annotated[str, Meta(description="`operations-LEVEL`, `data-LEVEL` or `cuda-sm_NN`.")]
    state: Annotated[
        str,
        Meta(
            description="`ok`; `built` now; `missing`; `stale`: other sources, flags or torch; "
            "`damaged`; `untrusted`: other users could have written it; `failed`: to build, to load or to run."
        ),
    ]
    why: Annotated[str, Meta(description="In one line; empty if the state is ok.")]
    compiler: Annotated[str | None, Meta(description="The compiler and its version; null: nothing is built.")]
    torch: Annotated[
        str | None, Meta(description="The version of torch that it was built for; null: nothing is built.")
    ]
    kernels: Annotated[int, Meta(description="Number of kernels; 0 for a library.")]
    folder: Annotated[str | None, Meta(description="Path of the file; null: nothing is built.")]
    used_here: Annotated[bool, Meta(description="True if this machine's CPU or GPU can run it.")]


class KernelCache(msgspec.Struct, frozen=True, kw_only=True):
    """The built files and their folder."""

    folders: Annotated[
        list[str], Meta(description="Folders in the order of the search. New files are built into the first one.")
    ]
    artifacts: Annotated[list[BuiltArtifact], Meta(description="Libraries, then kernels by architecture.")]
