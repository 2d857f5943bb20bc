"""What `opsctl kernels` prints with `--json`: libraries for the CPU and kernels for GPUs, built ahead of a training."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class BuiltArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be built: a library for a CPU's level, or all kernels for one architecture of GPUs."""

    name: Annotated[str, Meta(description="`operations-LEVEL`, `data-LEVEL` or `cuda-sm_NN`.")]
    state: Annotated[
        str,
        Meta(
            description="`ok`; `built` now; `missing`; `stale`: one of other sources, flags or torch is there; "
            "`damaged`; `untrusted`: others could have written it; `failed`: to build, to load or to run."
        ),
    ]
    why: Annotated[str, Meta(description="In one line; empty where all is well.")]
    compiler: Annotated[str | None, Meta(description="What built it, with its version; null: nothing is there.")]
    torch: Annotated[str | None, Meta(description="The version of torch it was built beside; null: nothing is there.")]
    kernels: Annotated[int, Meta(description="How many kernels it has; 0 for a library.")]
    folder: Annotated[str | None, Meta(description="Where it is; null: nowhere.")]
    used_here: Annotated[bool, Meta(description="Whether this machine's CPU or GPU would take it.")]


class KernelCache(msgspec.Struct, frozen=True, kw_only=True):
    """What was built and where."""

    folders: Annotated[list[str], Meta(description="Looked into in this order; the first one is built into.")]
    artifacts: Annotated[list[BuiltArtifact], Meta(description="Libraries, then kernels by architecture.")]
