"""Reading runs for those who look at them: one, or every one that is known here, with what the desk remembers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from opsctl.errors import OpsctlError
from opsctl.goodput.glance import GoodputSeen, goodput_seen
from opsctl.records import alerts
from opsctl.records.cancels import read_cancels
from opsctl.records.run_view import RunView
from opsctl.runs.paths import RunPaths
from opsctl.status.all_runs import Row, sorted_rows
from opsctl.status.health import Desk
from opsctl.status.open_findings import OpenFinding, with_memory
from opsctl.status.overview import LOOKED_AT, Overview, checks_of, findings
from opsctl.watch.all_runs import RunLook
from opsctl.watch.runner import in_words, settings_of
from opsctl.watch.snapshot import Part, Snapshot

#: Of many runs the log's lines are not looked at one by one, nor the cron, which is the same for all.
OF_MANY = LOOKED_AT & ~(Part.SERIES | Part.CRON | Part.CURVE)


def read_desk(paths: RunPaths, now: datetime) -> Desk:
    """What is remembered; not being able to read it is part of it."""
    try:
        return Desk(alerts.open_alerts(paths), alerts.silence_of(paths, now), tuple(read_cancels(paths)))
    except (OSError, OpsctlError) as error:
        return Desk(problem=in_words(error))


def goodput_of(seen: Snapshot) -> GoodputSeen | None:
    """About where the run's time went, from what a look has seen anyway."""
    is_queued = None if seen.blind is not None else any(job.is_pending for job in seen.jobs)
    submitted = [chain.submitted_at for chain in seen.chains]
    last, typical_s = seen.standing.last_iteration, seen.measured.seconds_per_iteration
    return goodput_seen(seen.attempts, submitted, typical_s, seen.now, is_queued, last.iteration if last else None)


def open_findings(run: RunView, overview: Overview, desk: Desk, parts: Part = LOOKED_AT) -> tuple[OpenFinding, ...]:
    """What is found in a look at `parts` of the run, and what is remembered, worst first."""
    checks = checks_of(parts)
    found = findings(overview, settings_of(run), checks)
    return tuple(with_memory(found, desk.findings, {check.name for check in checks}))


def rows_of(looks: Iterable[RunLook]) -> list[Row]:
    """Every run that was looked at, with OF_MANY, worst first. One that cannot be is a row that says why."""
    return sorted_rows([_row(look) for look in looks])


def _row(look: RunLook) -> Row:
    run, snapshot = look.run, look.snapshot
    if run is None or snapshot is None:
        return Row(look.name, look.output, None, (), look.problem)
    overview = Overview(run.table.name, run.table.team, run.paths.output, snapshot)
    try:
        found = open_findings(run, overview, read_desk(run.paths, snapshot.now), OF_MANY)
    except Exception as error:  # one broken run must not hide the others
        return Row(look.name, look.output, None, (), in_words(error))
    return Row(look.name, look.output, overview, found)
