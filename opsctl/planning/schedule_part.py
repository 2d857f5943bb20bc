"""How the batch grows, how many iterations that makes, and how the learning rate follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opsctl.planning import arithmetic
from opsctl.planning.section import Section, billions, whole
from opsctl.runs.checks import MOST_RAMP_STAGES
from trainer.recipe.layout import Layout
from trainer.recipe.schedule import BatchRamp, samples_of_tokens, train_iterations

_STAGES_SHOWN = 4


def ramp_of(options: Mapping[str, Any]) -> BatchRamp | None:
    """The batch's ramp-up; None while the options do not say it, or where it cannot be."""
    batch, ramp = options["global_batch_size"], options["rampup_batch_size"]
    if batch is None:
        return None
    try:
        if not ramp:
            return BatchRamp.constant(batch)
        start, increment, samples = ramp
        ramp_up = BatchRamp(start, increment, samples, batch)
        return ramp_up if ramp_up.intervals <= MOST_RAMP_STAGES else None
    except (TypeError, ValueError):
        return None


def iterations_of(options: Mapping[str, Any], ramp: BatchRamp | None) -> int | None:
    """The training's length in iterations; None while it is not known."""
    if options["train_samples"] is None or ramp is None:
        iterations: int | None = options["train_iters"]
        return iterations
    return train_iterations(ramp, options["train_samples"])


def batch_section(options: Mapping[str, Any], ramp: BatchRamp, layout: Layout | None) -> Section:
    """The full batch, and the ramp-up to it, nominal beside actual."""
    micro = options["micro_batch_size"]
    values: dict[str, Any] = {
        "micro_batch_size": micro,
        "global_batch_size": ramp.global_batch_size,
        "tokens_per_step": ramp.global_batch_size * options["seq_length"] if options["seq_length"] else None,
    }
    text = f"{ramp.global_batch_size:,} samples"
    if values["tokens_per_step"]:
        text += f" = {values['tokens_per_step']:,} tokens a step"
    rows = [("full batch", text)]
    if layout is not None and micro and ramp.global_batch_size % (micro * layout.data) == 0:
        values["micro_batches_per_step"] = ramp.global_batch_size // (micro * layout.data)
        rows.append(
            ("micro-batches", f"{values['micro_batches_per_step']} of {micro} on each of {layout.data} replicas")
        )
    if not ramp.is_ramp:
        return Section("batch", "Batch", {**values, "rampup": None}, tuple(rows))
    stages = _stage_values(ramp)
    values["rampup"] = {
        "start": ramp.start,
        "increment": ramp.increment,
        "samples": ramp.ramp_samples,
        "intervals": ramp.intervals,
        "samples_per_interval": ramp.samples_per_interval,
        "stages": stages,
    }
    rows.append(
        (
            "ramp-up",
            f"from {ramp.start} by {ramp.increment} over {ramp.ramp_samples:,} samples: "
            f"{ramp.intervals} intervals of {ramp.samples_per_interval:,}",
        )
    )
    return Section("batch", "Batch", values, tuple(rows), _ramp_table(stages, ramp), _RAMP_NOTE)


_RAMP_NOTE = (
    "Nominal: samples per interval / batch, rounded down. Actual: the batch follows the samples consumed, "
    "as the trainer does it."
)


def _stage_values(ramp: BatchRamp) -> list[dict[str, int]]:
    through = arithmetic.nominal_steps_through(ramp)
    return [
        {
            "batch_size": stage.batch_size,
            "first_sample": stage.first_sample,
            "nominal_steps": stage.nominal_steps or 0,
            "actual_steps": stage.actual_steps or 0,
            "nominal_steps_through": nominal,
            "actual_steps_through": stage.first_step - 1 + (stage.actual_steps or 0),
        }
        for stage, nominal in zip(ramp.stages()[:-1], through, strict=True)
    ]


def _ramp_table(stages: list[dict[str, int]], ramp: BatchRamp) -> tuple[tuple[str, ...], ...]:
    heading = ("batch", "from sample", "nominal steps", "actual steps", "nominal in all", "actual in all")
    shown = stages if len(stages) <= 2 * _STAGES_SHOWN else stages[:_STAGES_SHOWN] + stages[-2:]
    rows = [tuple(f"{value:,}" for value in stage.values()) for stage in shown]
    if len(shown) < len(stages):
        rows.insert(_STAGES_SHOWN, ("...",) * len(heading))
    last = ramp.stages()[-1]
    rows.append((f"{last.batch_size:,}", f"{last.first_sample:,}", "", "to the end", "", ""))
    return (heading, *rows)


def schedule_section(options: Mapping[str, Any], ramp: BatchRamp) -> Section:
    """Length and learning rate in samples, tokens and iterations."""
    sequence, samples = options["seq_length"], options["train_samples"]
    iterations = iterations_of(options, ramp)
    if samples is None and iterations is not None:
        samples = iterations * ramp.global_batch_size
    values = {
        "train_samples": samples,
        "train_tokens": samples * sequence if samples and sequence else None,
        "train_iterations": iterations,
        **_decay_values(options, ramp, samples),
    }
    rows = []
    if samples and iterations is not None:
        tokens = values["train_tokens"]
        rows.append(("training", f"{samples:,} samples" + (f" = {billions(tokens)} tokens" if tokens else "")))
        rows.append(("iterations", whole(iterations)))
    if options["lr"] is not None:
        decay, tokens = values["decay_samples"], values["decay_tokens"]
        rows.append(("learning rate", f"{options['lr']:g} to {options['min_lr']:g}, {options['lr_decay_style']}"))
        if decay and options["lr_decay_style"] != "constant":
            text = f"{decay:,} samples" + (f" = {billions(tokens)} tokens" if tokens else "")
            rows.append(("decay over", text))
        if values["warmup_samples"]:
            rows.append(("warm-up", f"{values['warmup_samples']:,} samples"))
    return Section("schedule", "Schedule", values, tuple(rows))


def _decay_values(options: Mapping[str, Any], ramp: BatchRamp, train_samples: int | None) -> dict[str, int | None]:
    """The learning rate's decay and warm-up, in samples also where they were given in iterations."""
    sequence, batch = options["seq_length"], ramp.global_batch_size
    decay = options["lr_decay_samples"] or (options["lr_decay_iters"] or 0) * batch or train_samples
    warmup = options["lr_warmup_samples"] or (options["lr_warmup_iters"] or 0) * batch
    if options["lr_warmup_fraction"] and decay:
        warmup = int(options["lr_warmup_fraction"] * decay)
    tokens = decay * sequence if decay and sequence else None
    return {
        "decay_samples": samples_of_tokens(tokens, sequence) if tokens else decay,
        "decay_tokens": tokens,
        "warmup_samples": warmup,
    }
