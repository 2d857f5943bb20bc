"""Read the facts of a run besides its log for the page. A part that cannot be read is left out and reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.units import count_words
from opsctl.diagnosis.carbon.brief import energy_seen
from opsctl.diagnosis.carbon.estimate import of_table
from opsctl.diagnosis.goodput.account import stretches
from opsctl.diagnosis.goodput.brief import ended_or
from opsctl.diagnosis.goodput.report import GoodputReport
from opsctl.diagnosis.nodes.exclusion_list import own_place, place_of, read_evidence_of, read_excluded
from opsctl.monitoring.overview import Overview
from opsctl.monitoring.runner import gather
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.config.checks import find_problems
from opsctl.run.config.profile import nodes_table
from opsctl.run.planning.costs import carbon_section
from opsctl.run.planning.from_run import run_sections
from opsctl.run.planning.plan import PlannedTime
from opsctl.run.planning.section import Section, amount
from opsctl.run.state import alert_log
from opsctl.run.state.revisions import published_since
from opsctl.run.state.run_view import RunView
from opsctl.slurm.client import SlurmReader
from opsctl.ui.report import run_tables
from opsctl.ui.report.curves import ALERT, Mark
from opsctl.ui.report.html_page import Known, Table
from opsctl.ui.report.log_source import LogSource
from opsctl.ui.report.log_tables import figures, progress, starts, utilisation
from opsctl.ui.report.rows import Utilisation
from opsctl.ui.report.run_tables import spent

#: What is looked at of the run; the log is read whole anyway.
PAGE_PARTS = Part.QUEUE | Part.PROGRESS | Part.LOG | Part.ATTEMPTS | Part.LEASE
T = TypeVar("T")


def known_of_log(log: LogSource) -> Known:
    """Return the facts of the log alone."""
    return Known(figures=figures(log.course), tables=(progress(log.course), starts(log.course)))


def known_of(run: RunView, log: LogSource, slurm: SlurmReader) -> Known:
    """Return all facts of a run for the page. An unreachable Slurm is reported, not raised."""
    seen = gather(run, slurm, PAGE_PARTS, is_tolerant=True)
    overview = Overview(run.table.name, run.table.team, run.paths.output, seen)
    problems = [f"not read: {why}" for _, why in seen.problems] + ([seen.blind] if seen.blind is not None else [])

    def told(what: Callable[[], T], otherwise: T) -> T:
        try:
            return what()
        except OSError as error:
            problems.append(file_problem(error, run.paths.output))
        except OpsctlError as error:
            problems.append(str(error))
        return otherwise

    is_queued = None if seen.blind is not None else any(job.is_pending for job in seen.jobs)
    submitted = [chain.submitted_at for chain in seen.chains]
    until = ended_or(seen.attempts, seen.now)
    found = list(stretches(seen.attempts, log.spans, submitted, until, is_queued))
    typical_s = seen.measured.seconds_per_iteration
    goodput = spent(run, seen.attempts, log.spans, submitted, until, is_queued, typical_s)
    none: list[Table] = []
    utilised = _utilisation(run, log)
    tables = [
        progress(log.course, None if until < seen.now else seen.now.timestamp(), _standing(overview), utilised),
        *([run_tables.goodput_rows(goodput)] if goodput is not None else none),
        run_tables.attempts_table(seen.attempts, found) if seen.attempts else starts(log.course),
        told(lambda: _nodes(run, seen), None),
        told(lambda: _plan(run, log, goodput), None),
        told(lambda: _carbon(run), None),
        told(lambda: _revisions(run), None),
    ]
    none_told: Sequence[Mark] = ()
    marks = told(lambda: _alerts(run), none_told)
    if problems:
        rows = [[str(number), why] for number, why in enumerate(dict.fromkeys(problems), 1)]
        tables.append(Table(title="What could not be read", headings=["No.", "Why"], rows=rows))
    return Known(
        figures=figures(
            log.course,
            overview.state,
            overview.percent_text,
            None if until < seen.now else seen.now.timestamp(),
            utilised,
            None if goodput is None else goodput.trained_percent,
        ),
        tables=tuple(one for one in tables if one is not None and one.rows),
        timeline=tuple(run_tables.timeline(found)),
        shares=tuple(run_tables.shares(goodput)) if goodput is not None else (),
        utilisation=utilised,
        marks=tuple(marks),
    )


def _standing(overview: Overview) -> list[tuple[str, str]]:
    """Return the rows from the queue and the checkpoints."""
    seen = overview.seen
    rows = [("State", overview.state)]
    if seen.checkpoint is not None:
        rows.append(("Last checkpoint", f"{seen.checkpoint.iteration:,}"))
    if overview.share is not None:
        rows.append(("Done", overview.percent_text))
    if seen.total_samples:
        rows.append(("Samples in all", count_words(seen.total_samples)))
    if seen.blind is None:
        running = f"job {seen.running.job_id} runs" if seen.running is not None else "nothing runs"
        rows.append(("Queue", f"{running}, {len(seen.behind)} behind it" if seen.behind else running))
    return rows


def _utilisation(run: RunView, log: LogSource) -> Utilisation | None:
    """Return the computed MFU; None if it is in the log or the run file is broken."""
    if run.loaded is None:
        return None
    file = run.loaded.file
    return utilisation(log.course, find_problems(run.loaded, files=False).options, file.gpu, file.slurm)


def _nodes(run: RunView, seen: Snapshot) -> Table:
    excluded = read_excluded(place_of(run.paths, nodes_table()))
    return run_tables.nodes_table(seen.attempts, read_evidence_of(own_place(run.paths)), excluded.nodes, seen.now)


def _plan(run: RunView, log: LogSource, goodput: GoodputReport | None) -> Table | None:
    """Return the plan; None for a broken run file."""
    if run.loaded is None:
        return None
    file = run.loaded.file
    found = find_problems(run.loaded, None, expect=file.expect)
    sections = run_sections(run.loaded, found, file.expect)
    time = next((one.values for one in sections if isinstance(one.values, PlannedTime)), None)
    carbon = None
    if file.carbon.gpu_power_w is not None and time is not None:
        carbon = carbon_section(file.carbon, of_table(file.carbon), time)
    more: Sequence[Section] = [] if carbon is None else [carbon]
    return run_tables.plan_table([*sections, *more], _came(run, log, goodput))


def _came(run: RunView, log: LogSource, goodput: GoodputReport | None) -> dict[str, str]:
    rows = dict(progress(log.course).rows)
    energy = energy_seen(run.paths, run.loaded.file.carbon if run.loaded is not None else None)
    came = {
        "Iterations": rows.get("Iteration", "").partition(" of ")[0],
        "Samples": rows.get("Samples", ""),
        "Tokens": rows.get("Tokens", ""),
        "Seconds per iteration": rows.get("An iteration", ""),
        "TFLOP/s per GPU": rows.get("TFLOP/s per GPU", ""),
    }
    if goodput is not None:
        came["Days of training"] = (
            f"{amount(goodput.wall_s / 86400, 1)} of wall time, {goodput.trained_percent:.0f} % trained"
        )
        came["GPU hours"] = amount(goodput.gpu_hours, 0)
    if energy is not None and energy.kwh is not None:
        came["Electricity"] = f"{amount(energy.kwh, 0)} kWh"
    return came


def _carbon(run: RunView) -> Table | None:
    energy = energy_seen(run.paths, run.loaded.file.carbon if run.loaded is not None else None)
    return None if energy is None else run_tables.carbon_table(energy)


def _revisions(run: RunView) -> Table:
    return run_tables.revisions_table(published_since(run.paths, datetime.fromtimestamp(0, UTC)))


def _alerts(run: RunView) -> Sequence[Mark]:
    """Return the sent alerts, placed by the clock, since a message has no iteration."""
    told = alert_log.messages(alert_log.events(run.paths))
    return [Mark(ALERT, -1, f"alert sent: {one.title}", one.at.timestamp()) for one in told]
