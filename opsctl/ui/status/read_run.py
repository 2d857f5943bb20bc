"""Reading a run for those who look at it, with what the desk remembers."""

from __future__ import annotations

from datetime import datetime

from opsctl.core.errors import OpsctlError
from opsctl.diagnosis.goodput.brief import GoodputSeen, goodput_seen
from opsctl.monitoring.runner import in_words, settings_of
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import alerts
from opsctl.run.state.chains import read_cancels
from opsctl.run.state.run_view import RunView
from opsctl.ui.status.health import Desk
from opsctl.ui.status.open_findings import OpenFinding, with_memory
from opsctl.ui.status.overview import LOOKED_AT, Overview, checks_of, findings


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
