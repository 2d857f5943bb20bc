"""Reading every run that is known here for those who look at them all."""

from __future__ import annotations

from collections.abc import Iterable

from opsctl.monitoring.all_runs import RunLook
from opsctl.monitoring.runner import in_words, settings_of
from opsctl.monitoring.snapshot import Part
from opsctl.ui.status.all_runs import Row, sorted_rows
from opsctl.ui.status.overview import LOOKED_AT, Overview
from opsctl.ui.status.read_run import open_findings, read_desk

#: Of many runs the log's lines are not looked at one by one, nor the cron, which is the same for all.
OF_MANY = LOOKED_AT & ~(Part.SERIES | Part.CRON | Part.CURVE)


def rows_of(looks: Iterable[RunLook]) -> list[Row]:
    """Every run that was looked at, with OF_MANY, worst first. One that cannot be is a row that says why."""
    return sorted_rows([_row(look) for look in looks])


def _row(look: RunLook) -> Row:
    run, snapshot = look.run, look.snapshot
    if run is None or snapshot is None:
        return Row(look.name, look.output, None, (), look.problem)
    try:
        overview = Overview(run.table.name, run.table.team, run.paths.output, snapshot, settings_of(run))
        found = open_findings(run, overview, read_desk(run.paths, snapshot.now), OF_MANY)
    except Exception as error:  # one broken run must not hide the others
        return Row(look.name, look.output, None, (), in_words(error))
    return Row(look.name, look.output, overview, found)
