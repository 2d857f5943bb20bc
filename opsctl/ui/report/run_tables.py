"""The tables from a run's records: attempts, nodes, where the time went, the plan next to the result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from opsctl.core.errors import OpsctlError
from opsctl.diagnosis.carbon.brief import EnergySeen
from opsctl.diagnosis.goodput.account import Part, Stay, Stretch, account, first_of, stays
from opsctl.diagnosis.goodput.report import GoodputReport, interval_line, report, words
from opsctl.diagnosis.nodes.exclusion_list import Exclusion
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence
from opsctl.run.attempts.ending import ending_words
from opsctl.run.attempts.events import Attempt
from opsctl.run.logs.spans import Span
from opsctl.run.planning.plan import PlannedCarbon, PlannedSchedule, PlannedThroughput, PlannedTime
from opsctl.run.planning.section import Section, amount
from opsctl.run.state.revisions import Revision
from opsctl.run.state.run_view import RunView
from opsctl.slurm.durations import format_duration
from opsctl.ui.report import html_page
from opsctl.ui.report.html_page import Share, Table
from opsctl.ui.report.log_tables import when

_KINDS = {Part.WAITED: "waited", Part.IDLE: "idle"}


def timeline(found: Sequence[Stretch]) -> list[html_page.Stretch]:
    """Return attempts and the gaps between them; a gap with a wait in the queue becomes two."""
    told: list[html_page.Stretch] = []
    for one in found:
        if one.stay is not None:
            told.append(_bar("attempt", one.begins_ms, one.ends_ms, _attempt_words(one.stay), one.stay.ended_badly))
            continue
        at_ms = one.begins_ms
        for (part, _), ms in one.amounts.items():  # as they come: nothing queued, then waiting
            if ms:
                kind = _KINDS.get(part, "not known")
                told.append(_bar(kind, at_ms, at_ms + ms, f"{words((part, ''))} for {format_duration(ms / 1000)}"))
                at_ms += ms
    return told


def shares(report: GoodputReport) -> list[Share]:
    """Return the parts of the wall time."""
    return [
        Share(part=words((Part(one.part), one.cause)), percent=one.wall_percent, hours=one.wall_s / 3600)
        for one in report.parts
    ]


def goodput_rows(report: GoodputReport) -> Table:
    """Return the table of goodput."""
    rows = [
        ["Trained", f"{report.trained_percent:.1f} % of the wall time"],
        ["GPU hours", amount(report.gpu_hours, 1)],
        ["Iterations lost", f"{report.iterations_lost:,} of {report.attempts} attempts"],
        ["Saving", interval_line(report.save_interval)],
    ]
    if report.next:
        rows.append(["What to do", report.next])
    return Table(title="Goodput", headings=["What", "How much"], rows=rows)


def attempts_table(attempts: Sequence[Attempt], found: Sequence[Stretch]) -> Table:
    """Return the table of attempts, newest first."""
    placed = {one.stay.attempt.id: one for one in found if one.stay is not None}
    waited = _waited(found)
    rows = []
    for attempt in reversed(attempts):
        stretch = placed.get(attempt.id)
        stay = stretch.stay if stretch is not None else None
        ran_s = (stretch.ends_ms - stretch.begins_ms) / 1000 if stretch is not None else 0.0
        lost = stay.lost_iterations() if stay is not None else 0
        last = stay.last_iteration if stay is not None else attempt.iteration_at_end
        rows.append(
            [
                f"{attempt.number} ({attempt.display_id})",
                when(attempt.opened_at) if attempt.opened_at is not None else "",
                format_duration(waited.get(attempt.id, 0) / 1000) if waited.get(attempt.id) else "",
                format_duration(ran_s),
                f"{attempt.iteration_at_start or 0:,} to {last:,}" if last is not None else "",
                f"{lost:,}" if lost else "",
                str(len(attempt.nodes)),
                attempt.revision,
                _end_words(attempt),
            ]
        )
    headings = ["Attempt", "Began", "Waited", "Ran", "Iterations", "Lost", "Nodes", "Revision", "Ended"]
    note = "Waited: time in the queue before the attempt. Lost: iterations that a later attempt had to train again."
    return Table(title="Attempts", headings=headings, rows=rows, note=note)


def nodes_table(
    attempts: Sequence[Attempt], evidence: Sequence[NodeEvidence], excluded: Sequence[Exclusion], now: datetime
) -> Table:
    """Return the nodes that were used or have evidence against them, those with incidents first."""
    used = Counter(node for attempt in attempts for node in attempt.nodes)
    blamed = Counter(one.node for one in evidence)
    newest = {one.node: one for one in sorted(evidence, key=lambda one: one.at)}
    out = {one.node: one for one in excluded if one.stands(now)}
    names = sorted({*used, *blamed, *out}, key=lambda name: (-blamed[name], name not in out, name))
    rows = []
    for name in names:
        last, exclusion = newest.get(name), out.get(name)
        incident = f"{when(last.at)} {last.kind}: {last.words}" if last is not None else ""
        until = f"until {when(exclusion.until)}: {exclusion.why}" if exclusion is not None else ""
        rows.append([name, str(used[name]), str(blamed[name] or ""), incident, until])
    headings = ["Node", "Attempts", "Incidents", "Newest incident", "Excluded"]
    return Table(title="Nodes", headings=headings, rows=rows)


def revisions_table(revisions: Sequence[Revision]) -> Table:
    """Return the revisions, newest first."""
    rows = [[one.name, when(one.created_at), one.created_by, one.note] for one in reversed(revisions)]
    return Table(title="Revisions", headings=["Revision", "Published", "By", "Note"], rows=rows)


def plan_table(sections: Sequence[Section], came: Mapping[str, str]) -> Table:
    """Return the run file's plan next to the result; `came` by the words of the first column."""
    planned: list[tuple[str, str]] = []
    for section in sections:
        values = section.values
        if isinstance(values, PlannedSchedule):
            planned += _numbers({"Iterations": values.train_iterations, "Samples": values.train_samples})
            planned += _numbers({"Tokens": values.train_tokens})
        elif isinstance(values, PlannedTime):
            days = values.days_at_expected_seconds or values.days_at_expected_tflops or values.training_days
            hours = values.gpu_hours_at_expected_seconds or values.gpu_hours_at_expected_tflops or values.gpu_hours
            planned += [("Days of training", amount(days, 1))] if days else []
            planned += [("GPU hours", amount(hours, 0))] if hours else []
        elif isinstance(values, PlannedThroughput):
            planned.append(("Seconds per iteration", f"{values.seconds_per_iteration:,.4g}"))
            planned.append(("TFLOP/s per GPU", f"{values.hardware_tflops:,.4g}"))
        elif isinstance(values, PlannedCarbon):
            kwh, low, high = (amount(one, 0) for one in (values.kwh, values.low_kwh, values.high_kwh))
            planned.append(("Electricity", f"{kwh} kWh ({low} to {high})"))
    rows = [[name, value, came.get(name, "")] for name, value in planned]
    note = "The plan is for the whole training, by the run file's [expect]; the result is as of now."
    return Table(title="Plan and result", headings=["What", "Planned", "So far"], rows=rows, note=note)


def carbon_table(energy: EnergySeen) -> Table:
    """Return the trackers' results."""
    rows = []
    if energy.kwh is not None:
        rows.append(["Electricity", f"{amount(energy.kwh)} kWh"])
    if energy.kg is not None:
        rows.append(["CO2e", f"{amount(energy.kg)} kg"])
    if energy.node_hours is not None:
        rows.append(["Node hours measured", amount(energy.node_hours, 1)])
    return Table(title="Carbon", headings=["What", "So far"], rows=rows, note=energy.told)


def _bar(kind: str, begins_ms: int, ends_ms: int, text: str, is_bad: bool = False) -> html_page.Stretch:
    return html_page.Stretch(kind=kind, begins_s=begins_ms / 1000, ends_s=ends_ms / 1000, text=text, is_bad=is_bad)


def _attempt_words(stay: Stay) -> str:
    ran = format_duration((stay.ends_ms - stay.begins_ms) / 1000)
    lost = stay.lost_iterations()
    lost_words = f"; {lost:,} iterations lost" if lost else ""
    return f"attempt {stay.attempt.number} ({stay.attempt.display_id}), {ran}: {_end_words(stay.attempt)}{lost_words}"


def _end_words(attempt: Attempt) -> str:
    if attempt.reason is None:
        return "runs"
    verdict, reason = attempt.verdict, ending_words(attempt.reason)
    return f"{reason}: {verdict.words}" if verdict is not None and verdict.is_known else reason


def _waited(found: Sequence[Stretch]) -> dict[str, int]:
    """Return attempt id -> milliseconds in the queue right before it."""
    waits: dict[str, int] = {}
    before = 0
    for one in found:
        if one.stay is None:
            before = one.amounts.get((Part.WAITED, ""), 0)
        else:
            waits[one.stay.attempt.id], before = before, 0
    return waits


def _numbers(values: Mapping[str, int | None]) -> list[tuple[str, str]]:
    return [(name, f"{value:,}") for name, value in values.items() if value]


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
    """Return the account of the time from the first submission, or `since`; None before a submission.

    is_queued: whether a job of the run waits in the queue now; None if unknown.
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
    """Return the GPUs of each attempt: one per rank, else the run's number per node."""
    try:
        published = run.revision.file.slurm.gpus_per_node if run.revision is not None else 0
    except OpsctlError:
        published = 0
    per_node = published or (run.loaded.file.slurm.gpus_per_node if run.loaded is not None else 0)
    return {one.id: len(one.ranks) or len(one.nodes) * per_node for one in attempts}


def _interval(run: RunView) -> int | None:
    """Return the iterations between saves; None if they vary."""
    try:
        options = run.options
    except OpsctlError:
        return None
    return options.save_interval if options is not None and not options.save_schedule else None
