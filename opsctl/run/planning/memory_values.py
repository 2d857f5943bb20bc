"""What a plan says of memory, as values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class PlannedPeak(Struct, frozen=True, kw_only=True):
    """What the fullest GPU takes at its peak, in GB (10^9 bytes); its own libraries are not counted."""

    stage: Annotated[int, Meta(description="Its pipeline stage, from 0.")]
    moment: Annotated[str, Meta(description="When: `backward`, or `reduction` of the gradients.")]
    weights_gb: Annotated[float, Meta(description="Weights.")]
    gradients_gb: Annotated[float, Meta(description="Gradients, and their sums.")]
    optimizer_gb: Annotated[float, Meta(description="Its share of fp32 weights and both moments.")]
    buckets_gb: Annotated[float, Meta(description="Buckets that gradients are copied into.")]
    activations_gb: Annotated[float, Meta(description="Activations of all micro-batches in flight.")]
    working_gb: Annotated[
        float, Meta(description="The block or the loss whose gradients are made, with what is computed again.")
    ]
    pipeline_gb: Annotated[float, Meta(description="What stages send each other.")]
    total_gb: Annotated[float, Meta(description="All of it.")]


class PlannedMemory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Memory of a replica's states, and of the fullest GPU."""

    bytes_per_param: Annotated[int, Meta(description="Bytes for each parameter, activations not counted.")]
    replica_gb: Annotated[float, Meta(description="One replica at that, in GB (10^9 bytes).")]
    per_gpu_gb: Annotated[
        float | None,
        Meta(description="The fullest GPU at its peak, in GB; only from a run file whose layout and micro-batch go."),
    ] = None
    peak: Annotated[PlannedPeak | None, Meta(description="The same by what it is for.")] = None
