"""Where a run's time went, from its records and its log, as `opsctl attempts --report` and the page tell it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from opsctl.core.errors import OpsctlError
from opsctl.diagnosis.goodput.account import account, first_of, stays
from opsctl.diagnosis.goodput.report import GoodputReport, report
from opsctl.run.attempts.events import Attempt
from opsctl.run.logs.spans import Span
from opsctl.run.state.run_view import RunView


def spent(
    run: RunView,
    attempts: Sequence[Attempt],
    spans: Sequence[Span],
    submitted: Sequence[datetime],
    until: datetime,
    is_queued: bool | None,
    seconds_per_iteration: float | None,
    since: datetime | None = None,
) -> GoodputReport | None:
    """All of it from the first submission, or `since`; None before anything was submitted.

    is_queued: whether anything of the run waits in the queue now; None where nobody knows.
    """
    first = first_of(attempts, submitted)
    if first is None:
        return None
    amounts = account(attempts, spans, submitted, _gpus(run, attempts), until, is_queued, since)
    placed = [
        stay for stay in stays(attempts, spans, until) if since is None or stay.ends_ms >= 1000 * since.timestamp()
    ]
    began = max(first, since) if since is not None else first
    return report(amounts, placed, began, until, seconds_per_iteration, _interval(run))


def _gpus(run: RunView, attempts: Sequence[Attempt]) -> dict[str, int]:
    """How many GPUs each attempt held: as many as ranks, else as the run has on each node."""
    try:
        published = run.revision.file.slurm.gpus_per_node if run.revision is not None else 0
    except OpsctlError:
        published = 0
    per_node = published or (run.loaded.file.slurm.gpus_per_node if run.loaded is not None else 0)
    return {one.id: len(one.ranks) or len(one.nodes) * per_node for one in attempts}


def _interval(run: RunView) -> int | None:
    """Iterations between saves; None where that is not one number."""
    try:
        options = run.options
    except OpsctlError:
        return None
    return options.save_interval if options is not None and not options.save_schedule else None
