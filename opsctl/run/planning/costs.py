"""The costs of a training: disk, time, and electricity."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from opsctl.run.checkpoints.retention import Kept, Progress, verdicts
from opsctl.run.config.schema import CarbonTable, ExpectTable, Reckoning, RetentionTable, SlurmTable
from opsctl.run.logs.records import Measured
from opsctl.run.planning import arithmetic
from opsctl.run.planning.fewer_nodes import SmallerLayout
from opsctl.run.planning.gpus import AssumedSpeed
from opsctl.run.planning.plan import (
    PlannedCarbon,
    PlannedCheckpoints,
    PlannedFewerNodes,
    PlannedJob,
    PlannedThroughput,
    PlannedTime,
)
from opsctl.run.planning.schedule import known, lengths_of
from opsctl.run.planning.section import Section, amount, gib_text, whole
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

#: With more checkpoints than this, only their number is printed.
_MOST_SAVES = 200_000


def checkpoint_sizes(count: int, half: bool = True, interval: int | None = None) -> Section:
    """Return the size of a checkpoint with `count` parameters on disk."""
    weights, full = arithmetic.weights_gib(count, half), arithmetic.checkpoint_gib(count, half)
    each = f"{'2 and 14' if half else '4 and 16'} bytes a parameter"
    values = PlannedCheckpoints(weights_gib=weights, full_gib=full, save_interval_iterations=interval)
    rows = (("weights / whole", f"{gib_text(weights)} / {gib_text(full)} ({each})"),)
    return Section("checkpoint", "Checkpoints", values, rows)


def checkpoint_section(
    options: Mapping[str, Any], shape: ModelShape, expect: ExpectTable, retention: RetentionTable | None
) -> Section:
    """Return all of the training's checkpoints on disk, as far as the options determine them."""
    half, is_full = is_half(shape.precision), not options["no_save_optim"]
    section = checkpoint_sizes(parameters(shape), half, options["save_interval"])
    each_gib = (arithmetic.checkpoint_gib if is_full else arithmetic.weights_gib)(parameters(shape), half)
    schedule, lengths = known(SaveSchedule.of, options), lengths_of(options)
    if not schedule or lengths is None or not lengths.train_iterations:
        return section
    count = schedule.count(lengths.train_iterations)
    values: dict[str, Any] = {"count": count}
    rows = [*section.rows, ("number", f"{count:,}, {schedule.words()}")]
    if count <= _MOST_SAVES:
        found = traffic(schedule, lengths.train_iterations, lengths.ramp, retention, is_full)
        written = found.count * each_gib
        kept = written if found.kept_most is None else found.kept_most * each_gib
        values = {"count": found.count, "schedule": schedule.words(), "written_gib": written}
        rows[-1] = ("number", f"{found.count:,}, {schedule.words()}: {gib_text(written)} written in total")
        why = "there is no [retention], so all are kept"
        if found.kept_most is not None:
            values |= {"kept_most": found.kept_most, "kept_most_gib": kept}
            why = f"{found.kept_most:,} by [retention]"
        rows.append(("on the disk at most", f"{gib_text(kept)}: {why}"))
        if seconds := expect.seconds_per_iteration:
            average = written / (lengths.train_iterations * seconds) * arithmetic.DAY_S
            peak = each_gib / (found.shortest_gap * seconds) * arithmetic.DAY_S
            values |= {"average_gib_per_day": average, "peak_gib_per_day": peak}
            rows.append(("written in a day", f"{gib_text(average)}; {gib_text(peak)} at the densest saves"))
        if expect.save_seconds:
            values["save_gib_per_second"] = each_gib / expect.save_seconds
            rows.append(("during a save", f"{gib_text(each_gib / expect.save_seconds)} a second"))
    return dataclasses.replace(section, values=replace(section.values, **values), rows=tuple(rows))


def time_sections(
    expect: ExpectTable,
    options: Mapping[str, Any],
    shape: ModelShape,
    ramp: BatchRamp,
    layout: Layout,
    assumed: AssumedSpeed | None = None,
) -> Iterator[Section]:
    """Yield the days by the expected TFLOPs and by the expected seconds per iteration, if given.

    Without either, the days by the `assumed` speed.
    """
    lengths, gpus, sequence, seconds = lengths_of(options), layout.world_size, options["seq_length"], None
    values: dict[str, float] = {}
    rows: list[tuple[str, str]] = []

    def add(by: str, label: str, days: float) -> None:
        values.update({f"days_at_{by}": days, f"gpu_hours_at_{by}": days * 24 * gpus})
        rows.append((label, days_text(days, gpus)))

    if expect.tflops and lengths is not None:
        days = arithmetic.training_days(parameters(shape), lengths.train_samples * sequence, gpus, expect.tflops)
        add("expected_tflops", f"at {expect.tflops:g} TFLOPs a GPU", days)
    if lengths is not None and lengths.train_iterations:
        if seconds := expect.seconds_per_iteration:
            days = lengths.train_iterations * seconds / arithmetic.DAY_S
            add("expected_seconds", f"at {seconds:g} s an iteration", days)
        if not rows and assumed is not None:
            tflops = tflops_per_gpu(shape, lengths.train_samples, sequence, 1.0, gpus, MODEL_PASSES)
            values["assumed_mfu"] = assumed.mfu
            add("assumed_mfu", f"assuming {100 * assumed.mfu:g} % MFU", tflops / assumed.tflops / arithmetic.DAY_S)
            peak = f"{assumed.mfu * assumed.peak_tflops:.0f} of {assumed.peak_tflops:g} TFLOP/s on {assumed.gpu}"
            rows.append(("which is", f"{peak}; [expect] seconds_per_iteration or the training log takes precedence"))
    if rows:
        yield Section("time", "Time to train, without waits between jobs", PlannedTime(**values), tuple(rows))
    if seconds := expect.seconds_per_iteration:
        batch, recompute = ramp.global_batch_size, recomputed(options)
        hardware = tflops_per_gpu(shape, batch, sequence, seconds, gpus, *PASSES[recompute])
        model = tflops_per_gpu(shape, batch, sequence, seconds, gpus, MODEL_PASSES)
        counted = "" if recompute == NONE else " (recomputation counted)"
        speed = PlannedThroughput(seconds_per_iteration=seconds, hardware_tflops=hardware, model_tflops=model)
        texts = (
            ("an iteration", f"{seconds:g} s: {whole(batch * sequence / seconds)} tokens a second"),
            ("TFLOPs a GPU", f"{amount(hardware)} hardware{counted}, {amount(model)} model"),
        )
        yield Section("throughput", "Speed at the full batch", speed, texts)


def days_text(days: float, gpus: float) -> str:
    """Format days: `31.35 days, 192,614 GPU hours`; hours and minutes below a day."""
    length = f"{amount(days)} days" if days >= 1 else format_duration(days * arithmetic.DAY_S)
    hours = days * 24 * gpus
    return f"{length}, {whole(hours) if hours >= 100 else amount(hours)} GPU hours"


def job_section(slurm: SlurmTable, expect: ExpectTable, fewer: Sequence[SmallerLayout] = ()) -> Section:
    """Return when each job of the chain exits, what must fit before its limit, and how it restarts.

    fewer: the layouts on fewer nodes.
    """
    probe_s = EFFORTS[slurm.effort].whole_s if slurm.effort in EFFORTS else 0.0
    values = PlannedJob(
        time_limit_s=parse_duration_s(slurm.time),
        exit_margin_s=parse_duration_s(slurm.exit_margin),
        exit_duration_minutes=exit_duration_minutes(slurm),
        iteration_s=expect.seconds_per_iteration,
        evaluation_s=expect.evaluation_seconds,
        save_s=expect.save_seconds,
        restarts=slurm.restarts,
        spare_nodes=slurm.spare,
        fewer_nodes=[
            PlannedFewerNodes(
                nodes=one.nodes,
                tensor=one.layout.tensor,
                pipeline=one.layout.pipeline,
                data=one.layout.data,
                micro_batch_size=one.micro_batch,
            )
            for one in fewer
        ],
        spare_gpu_hours_per_day=24.0 * slurm.spare * slurm.gpus_per_node,
        probe=slurm.effort,
        probe_most_s=probe_s,
    )
    margin = format_duration(values.exit_margin_s)
    parts = (("an iteration", values.iteration_s), ("an evaluation", values.evaluation_s), ("a save", values.save_s))
    rows = [
        ("time limit", format_duration(values.time_limit_s)),
        ("saves and exits after", f"{values.exit_duration_minutes:,} minutes, {margin} before the limit"),
        ("in which must fit", ", ".join(f"{what} ({_seconds(seconds)})" for what, seconds in parts)),
    ]
    if probe_s:
        rows.append(("nodes are tested", f"{slurm.effort}, for {_seconds(probe_s)} at most"))
    where = f"{slurm.restarts} times at most" if slurm.restarts else "only on spare nodes" if slurm.spare else "never"
    rows.append(("restarts in the job", where))
    if slurm.spare:
        hours = f"{whole(values.spare_gpu_hours_per_day)} GPU hours a day more"
        share = amount(100 * slurm.spare / slurm.nodes)
        rows.append(("spare nodes", f"{slurm.spare} in addition to {slurm.nodes}: {hours}, {share} %"))
    rows += [(f"on {one.nodes} nodes", str(one)) for one in fewer]
    return Section("job", "Each job", values, tuple(rows))


def exit_duration_minutes(slurm: SlurmTable) -> int:
    """Return the minutes after which the trainer saves and exits: the limit minus the margin, at least one."""
    return max(1, (parse_duration_s(slurm.time) - parse_duration_s(slurm.exit_margin)) // 60)


def _seconds(seconds: float | None) -> str:
    return "? s" if seconds is None else f"{seconds:,.3g} s"


#: Prunings that a plan simulates; with more saves, one pruning per group of saves.
_MOST_PRUNINGS = 2_000


@dataclasses.dataclass(frozen=True)
class Traffic:
    """The checkpoints of a whole training."""

    count: int
    shortest_gap: int  # iterations between the two closest ones
    kept_most: int | None  # at the same time, if the retention is known


def traffic(
    schedule: SaveSchedule, iterations: int, ramp: BatchRamp, retention: RetentionTable | None, is_full: bool
) -> Traffic:
    """Return the checkpoints of `iterations` iterations; the last iteration is always saved."""
    saved = list(_saved(schedule, iterations))
    regular = saved[:-1] or saved  # the last one is outside of the schedule
    gaps = (after - before for before, after in zip([0, *regular], regular, strict=False))
    kept = None if retention is None else _kept_most(saved, ramp, retention, schedule, is_full)
    return Traffic(len(saved), min(gaps), kept)


def _saved(schedule: SaveSchedule, iterations: int) -> Iterator[int]:
    due = schedule.next_after(0)
    while due is not None and due < iterations:
        yield due
        due = schedule.next_after(due)
    yield iterations


def _kept_most(
    saved: list[int], ramp: BatchRamp, retention: RetentionTable, schedule: SaveSchedule, is_full: bool
) -> int:
    """Return the most checkpoints on disk right after a save, if each pruning ends before the next save."""
    samples_in_all = _samples_after(ramp, saved[-1])
    each = -(-len(saved) // _MOST_PRUNINGS)
    there: list[Kept] = []
    most = 0
    for number, iteration in enumerate(saved, 1):
        samples = _samples_after(ramp, iteration)
        there.append(Kept(iteration, samples, is_full, iteration in schedule.pinned))
        if number % each and number < len(saved):
            continue
        most = max(most, len(there) - each + 1)
        decided = verdicts(there, retention, Progress(iteration, samples_in_all))
        there = [one for one, verdict in zip(there, decided, strict=True) if not verdict.goes]
    return most


def _samples_after(ramp: BatchRamp, iterations: int) -> int:
    """Return the samples of the first `iterations` iterations."""
    stage = next(one for one in reversed(ramp.stages()) if one.first_step <= iterations + 1)
    return stage.first_sample + (iterations + 1 - stage.first_step) * stage.batch_size


def carbon_section(carbon: CarbonTable, g_per_kwh: float | None, time: PlannedTime) -> Section | None:
    """Return kWh and kg CO2e, with the interval of the assumed GPU power and the expected GPU hours.

    g_per_kwh: of the site's electricity; None if unknown. Returns None without a GPU power or a duration.
    """
    hours = [one for one in (time.gpu_hours_at_expected_tflops, time.gpu_hours_at_expected_seconds) if one is not None]
    if carbon.gpu_power_w is None or not hours:
        return None
    power_w, off = carbon.gpu_power_w, carbon.gpu_power_off_percent / 100
    low_w, high_w = power_w * (1 - off), power_w * (1 + off)
    cases = ((min(hours), low_w), (sum(hours) / len(hours), power_w), (max(hours), high_w))
    low, kwh, high = (many * watts / 1000 * carbon.pue for many, watts in cases)
    low_kg, kg, high_kg = (None if g_per_kwh is None else one * g_per_kwh / 1000 for one in (low, kwh, high))
    values = PlannedCarbon(
        gpu_power_w=power_w,
        gpu_power_low_w=low_w,
        gpu_power_high_w=high_w,
        pue=carbon.pue,
        g_per_kwh=g_per_kwh,
        kwh=kwh,
        low_kwh=low,
        high_kwh=high,
        kg=kg,
        low_kg=low_kg,
        high_kg=high_kg,
    )
    between = " to ".join(dict.fromkeys((_amount(min(hours)), _amount(max(hours)))))
    assumed = (
        f"{power_w:g} W a GPU with its share of the node, {low_w:g} to {high_w:g} W in the interval ([carbon] "
        f"gpu_power_off_percent), PUE {carbon.pue:g}; {between} GPU hours are expected"
    )
    rows = [("assumed", assumed), ("electricity", f"{_amount(kwh)} kWh ({_amount(low)} to {_amount(high)})")]
    if kg is not None and low_kg is not None and high_kg is not None:
        text = f"{_amount(kg)} kg ({_amount(low_kg)} to {_amount(high_kg)}), at {g_per_kwh:,.4g} g a kWh"
        rows.append(("CO2e", text))
    return Section("carbon", "Electricity and CO2e of the whole training", values, tuple(rows))


def _amount(value: float) -> str:
    return whole(value) if value >= 100 else amount(value)


def with_measured(expect: ExpectTable, seen: Measured) -> Reckoning:
    """Return `[expect]`, overridden by every duration in the log."""
    keys = [key for key in Reckoning.__struct_fields__ if key in Measured.__struct_fields__ and key != "tflops"]
    measured = {key: value for key in keys if (value := getattr(seen, key)) is not None}
    return Reckoning(**{**asdict(expect), **measured})
