"""The handover as text that can be pasted into a chat: plain, in the order in which one reads it. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import datetime

from opsctl.core.output import printable
from opsctl.core.timestamps import iso
from opsctl.monitoring.finding import rough
from opsctl.monitoring.on_call import Facts, HandOver
from opsctl.monitoring.snapshot import queue_order
from opsctl.slurm.durations import format_duration
from opsctl.ui.status.queue import why
from opsctl.ui.status.screen import headline
from opsctl.ui.status.text import answer_age

WIDTH = 100
_STAMP = len("03-01 08:00  ")


def handover_lines(facts: Facts, told: HandOver, since: datetime, now: datetime) -> list[str]:
    """Return what happened, what is open and what is queued; no line longer than WIDTH unless a word is."""
    length = rough((now - since).total_seconds())
    lines = [f"{facts.name}: handover at {iso(now, 'minutes')}, the last {length}, since {iso(since, 'minutes')}"]
    if facts.overview is None:
        return [*_wrapped(lines[0], 0), *_wrapped(f"  cannot be read: {facts.problem}", 4)]
    lines += [f"now      {_now(facts)}", "happened", *_happened(told), "open", *_open(facts, told, now)]
    lines += ["queued", *_queued(facts)]
    return [piece for line in lines for piece in _wrapped(line, _indent_of(line))]


def _indent_of(line: str) -> int:
    """Return the indent of the continuation lines of a long line."""
    return 2 + _STAMP if line[:3].isspace() is False and line.startswith("  ") else 9 if line.startswith("now") else 4


def _now(facts: Facts) -> str:
    one = facts.overview
    assert one is not None
    parts = [headline(one)]
    if one.iteration is not None:
        share = f" ({one.percent_text})" if one.share is not None else ""
        of = f" of {one.iterations_in_all}" if one.iterations_in_all else ""
        parts.append(f"iteration {one.iteration}{of}{share}")
    last = one.seen.measured.newest_loss
    if last is not None and last.loss is not None:
        parts.append(f"loss {last.loss:.4g}")
    if one.finishes_at is not None:
        parts.append(f"done at {iso(one.finishes_at, 'minutes')} at this speed")
    return "; ".join(parts)


def _happened(told: HandOver) -> Iterator[str]:
    for one in told.happened:
        yield f"  {one.at.astimezone():%m-%d %H:%M}  {one.text}"
    for text in told.unread:
        yield f"  not read: {text}"
    if not told.happened and not told.unread:
        yield "  nothing"


def _open(facts: Facts, told: HandOver, now: datetime) -> Iterator[str]:
    for finding in facts.findings:
        story = finding.story(now)
        yield f"  {finding.severity.name.lower()}: {finding.finding.text}" + (f" [{story}]" if story else "")
    for request in told.requests:
        why_ = f" ({request.why})" if request.why else ""
        yield f"  no answer yet to the request of {request.asked_by}: {request.action or '?'}{why_}"
    if told.unsent_alerts:
        yield f"  {told.unsent_alerts} alert{'s' if told.unsent_alerts != 1 else ''} not sent yet: opsctl alerts list"
    if not (facts.findings or told.requests or told.unsent_alerts):
        yield "  nothing"


def _queued(facts: Facts) -> Iterator[str]:
    one = facts.overview
    assert one is not None
    if one.seen.blind is not None:
        yield f"  not known: {one.seen.blind}"
        return
    if age := answer_age(one.seen.queue_age_s):
        yield f"  {age}"
    for job in sorted(one.seen.jobs, key=queue_order):
        elapsed = format_duration(job.elapsed_at_s(one.seen.now))
        where = f"runs for {elapsed} on {job.nodes}" if job.is_running else why(job)
        yield f"  {job.display_id} of {job.user} {where}"
    if not one.seen.jobs:
        yield "  nothing"


def _wrapped(line: str, indent: int) -> list[str]:
    clean = printable(line.replace("\n", " "))
    return textwrap.wrap(
        clean, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ) or [""]
