"""What the fullest GPU of a run takes at its peak, part by part. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opsctl.run.planning import arithmetic
from opsctl.run.planning.memory_values import PlannedMemory, PlannedPeak
from opsctl.run.planning.section import Section, gb_text
from trainer.recipe.layout import Layout
from trainer.recipe.memory import RankMemory, fullest_rank
from trainer.recipe.model_options import NONE, recomputed
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.sizes import TRAINING_BYTES_PER_PARAMETER, parameters

_NOTE = "What the GPU's own libraries take, some 1 to 2 GB, is not counted, nor what its allocator leaves in pieces."


def memory_section(
    options: Mapping[str, Any], shape: ModelShape, layout: Layout | None, before_ampere: bool = False
) -> Section:
    """A replica's states, and the fullest GPU's peak where the run's layout and micro-batch are known."""
    total = arithmetic.memory_gb(parameters(shape))
    rows = [("a replica", f"{gb_text(total)}: 18 bytes a parameter, activations not counted")]
    peak = None
    if layout is not None and options["micro_batch_size"]:
        try:
            stage, found = fullest_rank(options, shape, layout, before_ampere)
        except ValueError:  # blocks or heads do not divide, which is among the problems
            return Section("memory", "Memory", memory_values(total), tuple(rows))
        peak = planned_peak(stage, found)
        rows += _rows(peak, options, layout)
    return Section("memory", "Memory", memory_values(total, peak), tuple(rows), note=_NOTE if peak else "")


def memory_values(replica_gb: float, peak: PlannedPeak | None = None) -> PlannedMemory:
    """A replica's weights, gradients and optimizer states, at 18 bytes a parameter, and the fullest GPU's peak."""
    per_gpu_gb = peak.total_gb if peak is not None else None
    return PlannedMemory(
        bytes_per_param=TRAINING_BYTES_PER_PARAMETER, replica_gb=replica_gb, per_gpu_gb=per_gpu_gb, peak=peak
    )


def planned_peak(stage: int, found: RankMemory) -> PlannedPeak:
    """The same in GB (10^9 bytes)."""
    return PlannedPeak(
        stage=stage,
        moment=found.moment,
        weights_gb=found.weights_bytes / 1e9,
        gradients_gb=found.gradients_bytes / 1e9,
        optimizer_gb=found.optimizer_bytes / 1e9,
        buckets_gb=found.buckets_bytes / 1e9,
        activations_gb=found.activations_bytes / 1e9,
        working_gb=found.working_bytes / 1e9,
        pipeline_gb=found.pipeline_bytes / 1e9,
        total_gb=found.peak_bytes / 1e9,
    )


_MOMENTS = {"backward": "in the backward pass", "reduction": "when gradients are reduced"}


def _rows(peak: PlannedPeak, options: Mapping[str, Any], layout: Layout) -> list[tuple[str, str]]:
    where = f", of stage {peak.stage + 1} of {layout.pipeline}" if layout.pipeline > 1 else ""
    shared = f", shared by {layout.data} replicas" if layout.data > 1 else ""
    recomputes = recomputed(options)
    kept = "all is kept" if recomputes == NONE else f"--recompute {recomputes}"
    parts = [
        ("weights", peak.weights_gb, ""),
        ("gradients", peak.gradients_gb, ""),
        ("optimizer", peak.optimizer_gb, f"fp32 weights and two moments{shared}"),
        ("reduction", peak.buckets_gb, "buckets that gradients are copied into"),
        ("activations", peak.activations_gb, f"of the micro-batches in flight; {kept}"),
        ("at work", peak.working_gb, "gradients of a block or of the loss, what is computed again"),
        ("between stages", peak.pipeline_gb, ""),
    ]
    rows = [("the fullest GPU", f"{gb_text(peak.total_gb)}{where}, {_MOMENTS[peak.moment]}:")]
    return rows + [(f"  {name}", gb_text(gb) + (f": {what}" if what else "")) for name, gb, what in parts if gb]
