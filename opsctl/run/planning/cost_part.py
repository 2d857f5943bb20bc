"""What a training takes: disk and time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from opsctl.run.config.schema import ExpectTable, RetentionTable, SlurmTable
from opsctl.run.planning import arithmetic
from opsctl.run.planning.gpus import AssumedSpeed
from opsctl.run.planning.plan import PlannedCheckpoints, PlannedJob, PlannedThroughput, PlannedTime
from opsctl.run.planning.schedule_part import known, lengths_of
from opsctl.run.planning.section import Section, amount, gib_text, whole
from opsctl.run.planning.traffic import traffic
from opsctl.slurm.durations import format_duration, parse_duration_s
from trainer.formats.attempt.node_samples import EFFORTS
from trainer.recipe.layout import Layout
from trainer.recipe.model_options import NONE, is_half, recomputed
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.save_schedule import SaveSchedule
from trainer.recipe.schedule import BatchRamp
from trainer.recipe.sizes import (
    MODEL_PASSES,
    PASSES,
    parameters,
    tflops_per_gpu,
)

#: Of a schedule with more checkpoints than anybody can want only their number is told.
_MOST_SAVES = 200_000


def checkpoint_section(
    options: Mapping[str, Any], shape: ModelShape, expect: ExpectTable, retention: RetentionTable | None
) -> Section:
    """Checkpoints on disk."""
    count = parameters(shape)
    half = is_half(shape.precision)
    weights, full = arithmetic.weights_gib(count, half), arithmetic.checkpoint_gib(count, half)
    each = f"{'2 and 14' if half else '4 and 16'} bytes a parameter"
    rows = [("weights / whole", f"{gib_text(weights)} / {gib_text(full)} ({each})")]
    sizes = PlannedCheckpoints(weights_gib=weights, full_gib=full, save_interval_iterations=options["save_interval"])
    written = weights if options["no_save_optim"] else full
    sizes, more = _with_traffic(sizes, options, expect, retention, written)
    return Section("checkpoint", "Checkpoints", sizes, (*rows, *more))


def _with_traffic(
    sizes: PlannedCheckpoints,
    options: Mapping[str, Any],
    expect: ExpectTable,
    retention: RetentionTable | None,
    each_gib: float,
) -> tuple[PlannedCheckpoints, list[tuple[str, str]]]:
    """The same with what all of the training's checkpoints come to, and its rows; as it is where that is not known."""
    schedule, lengths = known(SaveSchedule.of, options), lengths_of(options)
    if not schedule or lengths is None or not lengths.train_iterations:
        return sizes, []
    if schedule.count(lengths.train_iterations) > _MOST_SAVES:
        count = schedule.count(lengths.train_iterations)
        return replace(sizes, count=count), [("how many", f"{count:,}, {schedule.words()}")]
    told = traffic(schedule, lengths.train_iterations, lengths.ramp, retention, not options["no_save_optim"])
    written = told.count * each_gib
    kept = None if told.kept_most is None else told.kept_most * each_gib
    sizes = replace(
        sizes,
        count=told.count,
        schedule=schedule.words(),
        written_gib=written,
        kept_most=told.kept_most,
        kept_most_gib=kept,
    )
    rows = [("how many", f"{told.count:,}, {schedule.words()}: {gib_text(written)} written in all")]
    if kept is None:
        rows.append(("on the disk at most", f"{gib_text(written)}: there is no [retention], so all are kept"))
    else:
        rows.append(("on the disk at most", f"{gib_text(kept)}: {told.kept_most:,} by [retention]"))
    if seconds := expect.seconds_per_iteration:
        average = written / (lengths.train_iterations * seconds) * arithmetic.DAY_S
        peak = each_gib / (told.shortest_gap * seconds) * arithmetic.DAY_S
        sizes = replace(sizes, average_gib_per_day=average, peak_gib_per_day=peak)
        rows.append(("written in a day", f"{gib_text(average)}; {gib_text(peak)} where saves are nearest"))
    if expect.save_seconds:
        sizes = replace(sizes, save_gib_per_second=each_gib / expect.save_seconds)
        rows.append(("during a save", f"{gib_text(each_gib / expect.save_seconds)} a second"))
    return sizes, rows


def time_sections(
    expect: ExpectTable,
    options: Mapping[str, Any],
    shape: ModelShape,
    ramp: BatchRamp,
    layout: Layout,
    assumed: AssumedSpeed | None = None,
) -> Iterator[Section]:
    """Days by the expected TFLOPs and by the expected seconds per iteration, whichever are given.

    Without either, days by the `assumed` speed.
    """
    lengths, gpus = lengths_of(options), layout.world_size
    values = PlannedTime()
    rows = []
    if expect.tflops and lengths is not None:
        tokens = lengths.train_samples * options["seq_length"]
        days = arithmetic.training_days(parameters(shape), tokens, gpus, expect.tflops)
        values = replace(values, days_at_expected_tflops=days, gpu_hours_at_expected_tflops=days * 24 * gpus)
        rows.append((f"at {expect.tflops:g} TFLOPs a GPU", days_text(days, gpus)))
    if expect.seconds_per_iteration and lengths is not None and lengths.train_iterations:
        days = lengths.train_iterations * expect.seconds_per_iteration / arithmetic.DAY_S
        values = replace(values, days_at_expected_seconds=days, gpu_hours_at_expected_seconds=days * 24 * gpus)
        rows.append((f"at {expect.seconds_per_iteration:g} s an iteration", days_text(days, gpus)))
    if not rows and assumed is not None and lengths is not None and lengths.train_iterations:
        samples, sequence = lengths.train_samples, options["seq_length"]
        all_seconds = tflops_per_gpu(shape, samples, sequence, 1.0, gpus, MODEL_PASSES) / assumed.tflops
        days = all_seconds / arithmetic.DAY_S
        values = PlannedTime(
            assumed_mfu=assumed.mfu, days_at_assumed_mfu=days, gpu_hours_at_assumed_mfu=days * 24 * gpus
        )
        rows.append((f"assuming {100 * assumed.mfu:g} % MFU", days_text(days, gpus)))
        peak = f"{assumed.mfu * assumed.peak_tflops:.0f} of {assumed.peak_tflops:g} TFLOP/s on {assumed.gpu}"
        rows.append(("which is", f"{peak}; [expect] seconds_per_iteration or the training log replaces it"))
    if rows:
        yield Section("time", "Time to train, without waits between jobs", values, tuple(rows))
    if expect.seconds_per_iteration:
        batch, sequence, seconds = ramp.global_batch_size, options["seq_length"], expect.seconds_per_iteration
        recompute = recomputed(options)
        hardware = tflops_per_gpu(shape, batch, sequence, seconds, gpus, *PASSES[recompute])
        model = tflops_per_gpu(shape, batch, sequence, seconds, gpus, MODEL_PASSES)
        counted = "" if recompute == NONE else " (recomputation counted)"
        yield Section(
            "throughput",
            "Speed at the full batch",
            PlannedThroughput(seconds_per_iteration=seconds, hardware_tflops=hardware, model_tflops=model),
            (
                ("an iteration", f"{seconds:g} s: {whole(batch * sequence / seconds)} tokens a second"),
                ("TFLOPs a GPU", f"{amount(hardware)} hardware{counted}, {amount(model)} model"),
            ),
        )


def days_text(days: float, gpus: float) -> str:
    """`31.35 days, 192,614 GPU hours`; a clock below a day."""
    length = f"{amount(days)} days" if days >= 1 else format_duration(days * arithmetic.DAY_S)
    hours = days * 24 * gpus
    return f"{length}, {whole(hours) if hours >= 100 else amount(hours)} GPU hours"


def job_section(slurm: SlurmTable, expect: ExpectTable) -> Section:
    """When each job of the chain leaves."""
    limit_s, margin_s = parse_duration_s(slurm.time), parse_duration_s(slurm.exit_margin)
    minutes = exit_duration_minutes(slurm)
    spare_hours = 24.0 * slurm.spare * slurm.gpus_per_node
    probe_s = EFFORTS[slurm.effort].whole_s if slurm.effort in EFFORTS else 0.0
    parts = {
        "an iteration": expect.seconds_per_iteration,
        "an evaluation": expect.evaluation_seconds,
        "a save": expect.save_seconds,
    }
    return Section(
        "job",
        "Each job",
        PlannedJob(
            time_limit_s=limit_s,
            exit_margin_s=margin_s,
            exit_duration_minutes=minutes,
            iteration_s=expect.seconds_per_iteration,
            evaluation_s=expect.evaluation_seconds,
            save_s=expect.save_seconds,
            spare_nodes=slurm.spare,
            spare_gpu_hours_per_day=spare_hours,
            probe=slurm.effort,
            probe_most_s=probe_s,
        ),
        (
            ("time limit", format_duration(limit_s)),
            ("saves and leaves after", f"{minutes:,} minutes, {format_duration(margin_s)} before the limit"),
            ("in which must fit", ", ".join(f"{what} ({_seconds(seconds)})" for what, seconds in parts.items())),
            *([("nodes are tested", f"{slurm.effort}, for {_seconds(probe_s)} at most")] if probe_s else []),
            *([("spare nodes", _spare_words(slurm, spare_hours))] if slurm.spare else []),
        ),
    )


def _spare_words(slurm: SlurmTable, hours: float) -> str:
    share = 100 * slurm.spare / slurm.nodes
    return f"{slurm.spare} beside {slurm.nodes}: {whole(hours)} GPU hours a day more, {amount(share)} %"


def exit_duration_minutes(slurm: SlurmTable) -> int:
    """Minutes after which the trainer saves and leaves: the time limit less the margin, rounded down, at least one."""
    return max(1, (parse_duration_s(slurm.time) - parse_duration_s(slurm.exit_margin)) // 60)


def _seconds(seconds: float | None) -> str:
    return "? s" if seconds is None else f"{seconds:,.3g} s"
