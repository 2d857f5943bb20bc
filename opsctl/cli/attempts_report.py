"""`opsctl attempts --report`: where a run's time has gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from opsctl.cli.progress import reading_bar
from opsctl.core.errors import OpsctlError, UsageError
from opsctl.core.output import message, print_json, printable, show_lines
from opsctl.core.timestamps import now
from opsctl.diagnosis.goodput.brief import ended_or
from opsctl.diagnosis.goodput.report import GoodputReport, lines
from opsctl.monitoring.on_call import LAST, since_of
from opsctl.run.attempts.events import Attempt
from opsctl.run.logs.measurements import measured
from opsctl.run.logs.spans import read_spans
from opsctl.run.state.chains import read_chains, recorded
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView
from opsctl.slurm.backends import client_for
from opsctl.ui.report.run_tables import spent


def show_report(
    run: RunView, attempts: Sequence[Attempt], since: str | None, cluster: str | None, as_json: bool
) -> None:
    """Print it. since: a length or a time; None: the first submission. Raises UsageError for another one."""
    told = _report(run, attempts, now(), since, cluster)
    if told is None:
        message("nothing was submitted yet")
    elif as_json:
        print_json("goodput", told)
    else:
        show_lines(map(printable, lines(told)))


def _report(
    run: RunView, attempts: Sequence[Attempt], at: datetime, since: str | None, cluster: str | None
) -> GoodputReport | None:
    from_when = _since(since, at)
    submitted = [chain.submitted_at for chain in read_chains(run.paths)]
    if not submitted and not attempts:
        return None
    until = ended_or(attempts, at)
    is_queued = False if until < at else _is_queued(run, cluster)
    try:
        with reading_bar(run.paths.main_log) as bar:
            spans = read_spans(run.paths, bar)
    except OSError:
        spans = []  # "not known" is an answer; opsctl logs says what is wrong with the log
    typical_s = measured(run.paths).seconds_per_iteration
    return spent(run, attempts, spans, submitted, until, is_queued, typical_s, from_when)


def _since(since: str | None, at: datetime) -> datetime | None:
    if since == LAST:
        raise UsageError("--since last is for opsctl on-call; here a length (12h, 3d) or a time (2026-03-01T08:00)")
    return None if since is None else since_of(since, at, None)


def _is_queued(run: RunView, cluster: str | None) -> bool | None:
    """Return whether a job of the run waits in the queue; None if Slurm does not answer."""
    try:
        slurm = client_for(choose_cluster(cluster, run.paths))
        return any(job.is_pending for job in recorded(run.paths).own(slurm.jobs()))
    except (OpsctlError, OSError):
        return None
