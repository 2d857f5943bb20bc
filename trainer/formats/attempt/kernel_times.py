"""How long each way of computing a family of operations takes on one kind of device: what `opsctl kernels measure` has
measured, prints with `--json`, and leaves beside the built kernels for trainings to choose by.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

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
