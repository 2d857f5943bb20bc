"""Compiled kernels as JSON: what is built, and the measured times by which trainings choose."""

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


SCHEMA_VERSION = 1


class FamilyTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Of one family at one size."""

    family: Annotated[str, Meta(description="As `python -m trainer.kernels --why` calls it.")]
    kind: Annotated[str, Meta(description="Which of the family's operations: `LayerNorm`, `silu`; empty: it has one.")]
    precision: Annotated[str, Meta(description="`fp32`, `bf16` or `fp16`.")]
    columns: Annotated[int, Meta(description="Elements of a row; of Adam the hidden size.", gt=0)]
    shape: Annotated[str, Meta(description="Of what was computed, in words.")]
    seconds: Annotated[
        dict[str, Annotated[float, Meta(gt=0)]],
        Meta(description="Forward and backward once, by `C++` or `CUDA` (ours), `torch`, `torch.compile`, `apex`."),
    ]
    measured_at: Annotated[str, Meta(description="ISO 8601, with its zone.")]


class KernelTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Of all families that were measured on a device."""

    schema_version: Annotated[int, Meta(description=f"{SCHEMA_VERSION}.")] = SCHEMA_VERSION
    device: Annotated[str, Meta(description="The GPU's or the CPU's name.")]
    torch: Annotated[str, Meta(description="Version of torch that it was timed with.")]
    cuda: Annotated[str | None, Meta(description="The CUDA that torch was built with; null: none.")]
    families: Annotated[list[FamilyTimes], Meta(description="In the order that they were measured in.")]
