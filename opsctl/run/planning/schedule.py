"""The batch ramp-up, the number of iterations, the learning rate, and the evaluations of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from opsctl.run.config.schema import EvaluationTable
from opsctl.run.config.toml_types import MOST_RAMP_STAGES
from opsctl.run.planning.plan import (
    FittingNodes,
    NodesAlongTheRamp,
    PlannedBatch,
    PlannedEvaluations,
    PlannedSchedule,
    RampStage,
    RampUp,
)
from opsctl.run.planning.section import Section, billions, whole
from opsctl.slurm.durations import format_duration, parse_duration_s
from trainer.recipe.layout import Layout
from trainer.recipe.learning_rate import (
    samples_to_decay,
    samples_to_decay_last,
    samples_to_warm_up,
)
from trainer.recipe.lengths import Lengths
from trainer.recipe.save_schedule import SaveSchedule
from trainer.recipe.schedule import BatchRamp

Fact = TypeVar("Fact")
_STAGES_SHOWN = 4


def ramp_of(options: Mapping[str, Any]) -> BatchRamp | None:
    """Return the batch's ramp-up; None if the options do not define it, or it is invalid or too long to compute."""
    ramp = known(BatchRamp.of, options)
    return ramp if ramp is not None and ramp.intervals <= MOST_RAMP_STAGES else None


def lengths_of(options: Mapping[str, Any]) -> Lengths | None:
    """Return the training's length; None if the options do not define it, or contradict."""
    return known(Lengths.of, options) if ramp_of(options) is not None else None


def known(fact: Callable[[Mapping[str, Any]], Fact], options: Mapping[str, Any]) -> Fact | None:
    """Return `fact` of the options; None if an option that it needs is missing, or options contradict."""
    try:
        return fact(options)
    except (TypeError, ValueError):
        return None


def batch_section(options: Mapping[str, Any], ramp: BatchRamp, layout: Layout | None) -> Section:
    """Return the full batch, and the nominal and actual ramp-up to it."""
    micro = options["micro_batch_size"]
    divides = layout is not None and bool(micro) and ramp.global_batch_size % (micro * layout.data) == 0
    values = PlannedBatch(
        micro_batch_size=micro,
        global_batch_size=ramp.global_batch_size,
        tokens_per_step=ramp.global_batch_size * options["seq_length"] if options["seq_length"] else None,
        micro_batches_per_step=ramp.global_batch_size // (micro * layout.data) if layout and divides else None,
        rampup=_ramp_up(ramp) if ramp.is_ramp else None,
    )
    text = f"{ramp.global_batch_size:,} samples"
    if values.tokens_per_step:
        text += f" = {values.tokens_per_step:,} tokens a step"
    rows = [("full batch", text)]
    if layout is not None and values.micro_batches_per_step is not None:
        rows.append(("micro-batches", f"{values.micro_batches_per_step} of {micro} on each of {layout.data} replicas"))
    if values.rampup is None:
        return Section("batch", "Batch", values, tuple(rows))
    rows.append(
        (
            "ramp-up",
            f"from {ramp.start} by {ramp.increment} over {ramp.ramp_samples:,} samples: "
            f"{ramp.intervals} intervals of {ramp.samples_per_interval:,}",
        )
    )
    return Section("batch", "Batch", values, tuple(rows), _ramp_table(values.rampup.stages, ramp), _RAMP_NOTE)


_RAMP_NOTE = (
    "Nominal: samples per interval / batch, rounded down. Actual: the batch follows the samples consumed, "
    "as the trainer does it."
)


def _ramp_up(ramp: BatchRamp) -> RampUp:
    stages = [
        RampStage(
            batch_size=stage.batch_size,
            first_sample=stage.first_sample,
            nominal_steps=stage.nominal_steps or 0,
            actual_steps=stage.actual_steps or 0,
            nominal_steps_through=nominal,
            actual_steps_through=stage.first_step - 1 + (stage.actual_steps or 0),
        )
        for stage, nominal in zip(ramp.stages()[:-1], ramp.nominal_steps_through(), strict=True)
    ]
    return RampUp(
        start=ramp.start,
        increment=ramp.increment,
        samples=ramp.ramp_samples,
        intervals=ramp.intervals,
        samples_per_interval=ramp.samples_per_interval,
        stages=stages,
    )


def _ramp_table(stages: list[RampStage], ramp: BatchRamp) -> tuple[tuple[str, ...], ...]:
    heading = ("batch", "from sample", "nominal steps", "actual steps", "nominal total", "actual total")
    shown = stages if len(stages) <= 2 * _STAGES_SHOWN else stages[:_STAGES_SHOWN] + stages[-2:]
    rows = [tuple(f"{value:,}" for value in msgspec.structs.astuple(stage)) for stage in shown]
    if len(shown) < len(stages):
        rows.insert(_STAGES_SHOWN, ("...",) * len(heading))
    last = ramp.stages()[-1]
    rows.append((f"{last.batch_size:,}", f"{last.first_sample:,}", "", "to the end", "", ""))
    return (heading, *rows)


def schedule_section(options: Mapping[str, Any]) -> Section:
    """Return length and learning rate in samples, tokens and iterations; unknown values are None."""
    lengths, sequence = lengths_of(options), options["seq_length"]
    samples = lengths.train_samples if lengths is not None else None
    iterations = lengths.train_iterations if lengths is not None else None
    decay, warmup = known(samples_to_decay, options), known(samples_to_warm_up, options)
    tokens = samples * sequence if samples and sequence else None
    decay_tokens = decay * sequence if decay and sequence else None
    rows = []
    if samples and iterations is not None:
        rows.append(("training", f"{samples:,} samples" + (f" = {billions(tokens)} tokens" if tokens else "")))
        rows.append(("iterations", whole(iterations)))
    if options["lr"] is not None:
        rows.append(("learning rate", f"{options['lr']:g} to {options['min_lr']:g}, {options['lr_decay_style']}"))
        if decay and options["lr_decay_style"] != "constant":
            text = f"{decay:,} samples" + (f" = {billions(decay_tokens)} tokens" if decay_tokens else "")
            rows.append(("decay over", text))
            if last := known(samples_to_decay_last, options):
                rows.append(("of this, decay", f"{last:,} samples, {options['lr_wsd_decay_style']}"))
        if warmup:
            rows.append(("warm-up", f"{warmup:,} samples"))
    values = PlannedSchedule(
        train_samples=samples,
        train_tokens=tokens,
        train_iterations=iterations,
        decay_samples=decay,
        decay_tokens=decay_tokens,
        warmup_samples=warmup,
    )
    return Section("schedule", "Schedule", values, tuple(rows))


def nodes_section(per_node: int, options: Mapping[str, Any], ramp: BatchRamp) -> Section | None:
    """Return the node counts that fit from each stage of the ramp-up on: all later batches are divisible by them.

    None without a ramp-up or a micro-batch, and if no node count fits.
    """
    micro = options["micro_batch_size"]
    model = options["tensor_model_parallel_size"] * options["pipeline_model_parallel_size"]
    if not ramp.is_ramp or not micro:
        return None
    stages = [
        FittingNodes(
            first_sample=stage.first_sample,
            batch_size=stage.batch_size,
            nodes=_node_counts(common // micro if common % micro == 0 else 0, model, per_node),
        )
        for stage, common in zip(ramp.stages(), _common_divisors(ramp), strict=True)
    ]
    found = [stages[0], *(now for before, now in pairwise(stages) if now.nodes != before.nodes)]
    found = [one for one in found if one.nodes]
    if not found:
        return None
    rows = [("from sample", "batch", "nodes that fit from there on")]
    rows += [(f"{one.first_sample:,}", f"{one.batch_size:,}", " ".join(map(str, one.nodes))) for one in found]
    return Section("ramp_nodes", "Nodes along the ramp-up", NodesAlongTheRamp(stages=found), (), tuple(rows))


def _common_divisors(ramp: BatchRamp) -> list[int]:
    """Return the greatest common divisor of each stage's batch and all later ones."""
    found: list[int] = []
    for stage in reversed(ramp.stages()):
        found.append(math.gcd(stage.batch_size, found[-1] if found else 0))
    return found[::-1]


def _node_counts(replicas: int, model: int, per_node: int) -> list[int]:
    """Return the node counts whose replicas, of `model` ranks each, divide `replicas`."""
    fitting = [count for count in range(1, replicas + 1) if replicas % count == 0]
    return [count * model // per_node for count in fitting if count * model % per_node == 0]


def evaluation_sections(table: EvaluationTable | None, options: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the evaluations section; nothing without scheduled evaluations, or if the training's length is unknown."""
    schedule, lengths = known(SaveSchedule.of, options), lengths_of(options)
    if table is None or not table.tasks or not table.every or schedule is None:
        return
    if lengths is None or not lengths.train_iterations:
        return
    last = lengths.train_iterations  # always saved
    count = sum(schedule.is_due(one) or one == last for one in range(table.every, last + 1, table.every))
    limit_s = parse_duration_s(table.time) if table.time else None
    hours = count * table.gpus * limit_s / 3600 if limit_s is not None and table.gpus else None
    if not count:
        rows = [("number", f"none: no checkpoint is saved at a multiple of {table.every:,}")]
    else:
        rows = [("number", f"{count:,}, at multiples of {table.every:,}, {len(table.tasks):,} tasks each")]
    if count and limit_s is not None and hours is not None:
        gpus = f"{table.gpus} GPU{'s' if table.gpus > 1 else ''}"
        rows.append(("their jobs", f"{gpus} for {format_duration(limit_s)}: {whole(hours)} GPU hours if each takes it"))
    values = PlannedEvaluations(
        every_iterations=table.every,
        count=count,
        tasks=len(table.tasks),
        gpus=table.gpus,
        time_limit_s=limit_s,
        gpu_hours=hours,
    )
    yield Section("evaluations", "Evaluations by lm-eval", values, tuple(rows))
