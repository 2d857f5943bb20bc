"""Compiled kernels as JSON: the built files, and the measured times by which trainings choose."""

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
    used_here: Annotated[bool, Meta(description="Whether this machine's CPU or GPU can run it.")]


class KernelCache(msgspec.Struct, frozen=True, kw_only=True):
    """The built files and their folder."""

    folders: Annotated[
        list[str], Meta(description="Folders in the order of the search. New files are built into the first one.")
    ]
    artifacts: Annotated[list[BuiltArtifact], Meta(description="Libraries, then kernels by architecture.")]


SCHEMA_VERSION = 1


class FamilyTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one kernel family at one size."""

    family: Annotated[str, Meta(description="As `python -m trainer.kernels --why` names it.")]
    kind: Annotated[
        str, Meta(description="The operation in the family: `LayerNorm`, `silu`; empty if there is only one.")
    ]
    precision: Annotated[str, Meta(description="`fp32`, `bf16` or `fp16`.")]
    columns: Annotated[int, Meta(description="Elements of a row; for Adam the hidden size.", gt=0)]
    shape: Annotated[str, Meta(description="Sizes of the computation, in words.")]
    seconds: Annotated[
        dict[str, Annotated[float, Meta(gt=0)]],
        Meta(
            description="Seconds of forward and backward, by `C++` or `CUDA` (ours), `torch`, `torch.compile`, `apex`."
        ),
    ]
    measured_at: Annotated[str, Meta(description="ISO 8601, with its zone.")]


class KernelTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times of all families that were measured on a device."""

    schema_version: Annotated[int, Meta(description=f"{SCHEMA_VERSION}.")] = SCHEMA_VERSION
    device: Annotated[str, Meta(description="The GPU's or the CPU's name.")]
    torch: Annotated[str, Meta(description="Version of torch during the measurement.")]
    cuda: Annotated[str | None, Meta(description="The CUDA version of torch's build; null: none.")]
    families: Annotated[list[FamilyTimes], Meta(description="In the order of the measurement.")]
