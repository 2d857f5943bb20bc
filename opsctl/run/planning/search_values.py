"""What `opsctl plan --search` says, as values."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class SearchedGpu(Struct, frozen=True, kw_only=True):
    """What was reckoned with."""

    name: Annotated[str, Meta(description="The GPU as `[slurm]` asks for it.")]
    gpus: Annotated[int, Meta(description="GPUs in all.")]
    gpus_per_node: Annotated[int, Meta(description="GPUs of each node.")]
    memory_gb: Annotated[float, Meta(description="Memory of each, in GB (10^9 bytes).")]
    usable_gb: Annotated[float, Meta(description="What of it a training may take.")]
    peak_tflops: Annotated[float, Meta(description="Stated dense TFLOP/s of each.")]
    within_node_gbs: Annotated[float, Meta(description="GB/s of each GPU to those of its node.")]
    between_nodes_gbs: Annotated[float, Meta(description="GB/s of each node to others.")]


class FittingLayout(Struct, frozen=True, kw_only=True):
    """One layout that fits, and what it takes."""

    tensor: Annotated[int, Meta(description="Tensor-parallel ranks.")]
    pipeline: Annotated[int, Meta(description="Pipeline stages.")]
    data: Annotated[int, Meta(description="Replicas.")]
    micro_batch_size: Annotated[int, Meta(description="Samples of a micro-batch.")]
    recompute: Annotated[str, Meta(description="What is recomputed: `none`, `attention` or `block`.")]
    micro_batches: Annotated[int, Meta(description="Micro-batches of each replica in a step at the full batch.")]
    seconds_per_iteration: Annotated[float, Meta(description="Reckoned seconds of a step at the full batch.")]
    memory_gb: Annotated[float, Meta(description="The fullest GPU's peak, in GB.")]
    bubble: Annotated[float, Meta(description="(stages - 1) / micro-batches.")]
    communication: Annotated[float, Meta(description="Share of a step that goes to communication, 0 to 1.")]
    is_the_run: Annotated[
        bool,
        Meta(description="Whether the run file has this layout and micro-batch, whatever it recomputes."),
    ]


class LayoutSearch(Struct, frozen=True, kw_only=True):
    """Layouts that fit the GPUs' memory, the fastest first."""

    run: Annotated[str, Meta(description="The run's name.")]
    gpu: Annotated[SearchedGpu, Meta(description="The GPU and what connects it.")]
    scaled_by: Annotated[
        float | None,
        Meta(description="By what seconds are scaled to the run's own speed, measured or expected; null: neither."),
    ]
    own: Annotated[
        FittingLayout | None,
        Meta(description="The run's own layout with what it recomputes, whether or not it fits; null: of other GPUs."),
    ]
    layouts: Annotated[list[FittingLayout], Meta(description="All that fit.")]
