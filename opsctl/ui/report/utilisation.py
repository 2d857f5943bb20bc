"""MFU where no line of the log says it: from what the run file says of the model and of its GPU. Pure."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from opsctl.run.config.schema import GpuTable, SlurmTable
from opsctl.run.planning.gpus import planned_peak
from opsctl.run.planning.sizes import model_shape
from opsctl.ui.report.curves import Course
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.sizes import MODEL_PASSES, tflops_per_gpu


@dataclass(frozen=True)
class Utilisation:
    """A column of percent along a course's iterations, NaN where it cannot be told, and what it was reckoned from."""

    percent: array[float]
    source: str


def utilisation(course: Course, options: Options, gpu: GpuTable, slurm: SlurmTable) -> Utilisation | None:
    """MFU by the peak of the GPU that the run file names; None where the log says it, or that peak is not known.

    What the network asks for is the log's model TFLOP/s, or where its two decimals say nothing of a small model, the
    model's FLOPs in the time that an iteration took (`trainer.recipe.sizes`).
    """
    shape = model_shape(options)
    if shape is None or not len(course) or not all(map(math.isnan, course.column("mfu"))):
        return None
    peak = planned_peak(gpu, slurm, shape.precision)
    if peak is None:
        return None
    against = f"of the {peak.tflops:g} TFLOP/s that {peak.source} in {shape.precision}"
    told = course.column("model_tflops")
    if any(one >= 1 for one in told):
        return Utilisation(_percent(iter(told), peak.tflops), f"the log's model TFLOP/s {against}")
    ranks = _ranks(course, slurm)
    reckoned = _percent(_model_tflops(course, shape, options["seq_length"], ranks), peak.tflops)
    if all(map(math.isnan, reckoned)):
        return None
    least, most = min(ranks), max(ranks)
    gpus = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return Utilisation(reckoned, f"batch, seconds and the run file's model on {gpus} GPUs, {against}")


def _ranks(course: Course, slurm: SlurmTable) -> list[int]:
    """Of each line, as its start has them; the run file's where the log does not say.

    A start names the nodes that it was given, spare ones among them.
    """
    found = []
    for ranks, nodes in zip(course.column("ranks"), course.column("nodes"), strict=True):
        trained_on = max(1, int(nodes) - slurm.spare) if math.isfinite(nodes) else slurm.nodes
        counted = slurm.gpus_per_node * trained_on
        found.append(int(ranks) if math.isfinite(ranks) else counted)
    return found


def _model_tflops(course: Course, shape: ModelShape, sequence_length: int, ranks: Sequence[int]) -> Iterator[float]:
    for batch, seconds, on in zip(course.column("batch"), course.column("seconds"), ranks, strict=True):
        is_told = math.isfinite(batch) and math.isfinite(seconds) and seconds > 0
        # Curves' numbers are floats; a batch is a whole one.
        step = (int(batch), sequence_length, seconds, on, MODEL_PASSES) if is_told else None
        yield tflops_per_gpu(shape, *step) if step is not None else math.nan


def _percent(model_tflops: Iterator[float], peak_tflops: float) -> array[float]:
    return array("d", (100 * one / peak_tflops for one in model_tflops))
