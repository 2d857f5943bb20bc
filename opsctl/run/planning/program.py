"""The section of a plan about a training program other than our trainer. Pure."""

from __future__ import annotations

import shlex

from opsctl.run.config.program import Program
from opsctl.run.config.schema import HOOK
from opsctl.run.planning.plan import PlannedProgram
from opsctl.run.planning.section import Section
from opsctl.slurm.durations import format_duration


def program_section(program: Program, refused: str | None = None) -> Section:
    """Return how the program is started, stopped and observed. refused: why a start is refused."""
    found = PlannedProgram(
        kind=program.kind.name,
        command=program.command,
        launch=program.launch,
        stop=program.stop,
        grace_s=program.grace_s,
        checkpoints=program.checkpoints,
        steps=program.steps,
        lacks=tuple(program.lacks()),
        refused=refused,
    )
    per_node = "one process per GPU" if program.launch == "ranks" else f"one {program.launch} per node"
    asked = "opsctl_hook.should_stop() is true" if found.stop == HOOK else f"{found.stop} to all ranks"
    stops = f"{asked}, {format_duration(found.grace_s)} to save" if found.stop else "it does not save"
    rows = (
        ("kind", found.kind),
        ("command", shlex.join(found.command)),
        ("started by", per_node),
        ("at a stop", stops),
        ("checkpoints", found.checkpoints or "unknown: set [program] checkpoints"),
        *(("not possible", text) for text in found.lacks),
        *([("refused", refused)] if refused else []),
    )
    return Section("program", "Program", found, rows)
