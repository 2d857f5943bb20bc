"""What messages say, as title and body. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from opsctl.core.output import printable
from opsctl.core.timestamps import iso
from opsctl.run.state.alerts import Remembered, Silence
from opsctl.slurm.durations import format_duration

Findings = Mapping[str, Remembered]
#: Findings that are told with all they have; the rest of one message in a line each.
_WHOLE = 20


def news(new: Findings, now: datetime) -> tuple[str, str]:
    """What began, or became worse, and how much of it was held back for how long."""
    title, body = _titled("", new), _body(new, now)
    held = [one.held_since for one in new.values() if one.held_since is not None]
    if held:
        body += f"\n{len(held)} of these held back since {iso(min(held))}: [alerts] per_hour or quiet"
    return title, body


def reminder(due: Findings, now: datetime) -> tuple[str, str]:
    """What goes on, and nobody looks after."""
    most = max(one.reminders for one in due.values()) + 1
    return _titled(f"reminder {most}: ", due), _body(due, now)


def escalation(late: Findings, now: datetime) -> tuple[str, str]:
    """What nobody has acknowledged in time."""
    return _titled("nobody has acknowledged: ", late), _body(late, now)


def recovery(ended: Findings, now: datetime) -> tuple[str, str]:
    """What has ended."""
    lines = [f"{key}: {_line(one.text)} ({_lasted(one, one.recovered_at or now)})" for key, one in ended.items()]
    first = next(iter(ended.values()))
    more = f" and {len(ended) - 1} more" if len(ended) > 1 else ""
    return f"recovered: {_line(first.text)}{more}", "\n".join(lines)


def silence_over(silence: Silence, still: Findings, ended: Findings, now: datetime) -> tuple[str, str]:
    """What is open at the end of a silence, and what ended during it."""
    by = f" of {silence.by}" if silence.by else ""
    body = _body(still, now) if still else ""
    if ended:
        body += f"\n\nended meanwhile:\n{recovery(ended, now)[1]}"
    return f"the silence{by} is over: {len(still)} open, {len(ended)} ended", body.strip()


def _titled(before: str, about: Findings) -> str:
    worst = "CRITICAL" if any(one.severity == "critical" for one in about.values()) else "WARNING"
    ordered = sorted(about.values(), key=lambda one: one.severity != "critical")
    more = f" and {len(about) - 1} more" if len(about) > 1 else ""
    return f"{before}{worst}: {_line(ordered[0].text)}{more}"


def _body(about: Findings, now: datetime) -> str:
    blocks = []
    ordered = sorted(about.items(), key=lambda item: (item[1].severity != "critical", item[0]))
    for number, (key, one) in enumerate(ordered):
        lines = [f"{one.severity.upper()} {key}, {_lasted(one, now)}: {_line(one.text)}"]
        if number < _WHOLE:
            lines += [f"  {_line(said)}" for said in one.evidence]
            lines += [f"  do: {_line(one.todo)}"] if one.todo else []
            if one.acknowledged_by:
                lines.append(f"  {one.acknowledged_by} looks after it")
        blocks.append("\n".join(lines))
    return "\n".join(blocks) + "\n\nopsctl alerts ack KEY stops the reminders for everybody"


def _lasted(one: Remembered, until: datetime) -> str:
    return f"since {iso(one.since)}, {format_duration((until - one.since).total_seconds())}"


def _line(text: str) -> str:
    return printable(text)
