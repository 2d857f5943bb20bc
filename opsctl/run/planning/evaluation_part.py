"""How many checkpoints of a whole training lm-eval is run on, and what those jobs may take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.run.config.schema import EvaluationTable
from opsctl.run.planning.plan import PlannedEvaluations
from opsctl.run.planning.schedule_part import known, lengths_of
from opsctl.run.planning.section import Section, whole
from opsctl.slurm.durations import format_duration, parse_duration_s
from trainer.recipe.save_schedule import SaveSchedule


def evaluation_sections(table: EvaluationTable | None, options: Mapping[str, Any]) -> Iterator[Section]:
    """Nothing where nothing is to be evaluated by schedule, or nobody knows how long the training is."""
    schedule, lengths = known(SaveSchedule.of, options), lengths_of(options)
    if table is None or not table.tasks or not table.every or schedule is None:
        return
    if lengths is None or not lengths.train_iterations:
        return
    last = lengths.train_iterations  # which is saved whatever the schedule
    count = sum(schedule.is_due(one) or one == last for one in range(table.every, last + 1, table.every))
    limit_s = parse_duration_s(table.time) if table.time else None
    hours = count * table.gpus * limit_s / 3600 if limit_s is not None and table.gpus else None
    if not count:
        rows = [("how many", f"none: no checkpoint is saved at a multiple of {table.every:,}")]
    else:
        rows = [("how many", f"{count:,}, at multiples of {table.every:,}, {len(table.tasks):,} tasks each")]
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
