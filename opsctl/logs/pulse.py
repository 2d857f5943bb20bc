"""Reading the watchdog's PULSE and ALERT lines, ours and the originals', whose last parenthesis was not closed."""

from __future__ import annotations

import re
from datetime import datetime

from opsctl.logs.records import Alert, Pulse

#: state -> the pattern of the words that say it, in the order they are tried; the job in parentheses follows. They are
#: text: most readers of a log never meet one, and `re` keeps what it has compiled.
_FORMS = (
    ("running", r"(?P<name>.+?) is running for (?P<elapsed>\S+) since (?P<starts_at>\S+)"),
    ("array-limit", r"(?P<name>.+?) is waiting for the previous Job Array job to finish before scheduling a new one"),
    (
        "dependency",
        r"(?P<name>.+?) is waiting for the previous job to finish before scheduling a new one"
        r" using the dependency mechanism",
    ),
    ("pending", r"(?P<name>.+?) is waiting to be scheduled"),
    ("scheduled", r"(?P<name>.+?) is scheduled to start in (?P<elapsed>.+?) \(at (?P<starts_at>[^)]*)\)"),
    ("unknown", r"(?P<name>.+?) is unknown - fix me: \(at (?P<starts_at>[^)]*)\)"),
    ("finished", r"(?P<name>.+?) is finished\b"),
    ("held", r"(?P<name>.+?) is held\b"),
    ("cannot-start", r"(?P<name>.+?) cannot start as it was submitted\b"),
    ("blind", r"(?P<name>.+?) cannot be seen: "),
    ("never", r"(?P<name>.+?) waits for a dependency that can never be satisfied"),
    ("configuring", r"(?P<name>.+?) is getting its nodes ready"),
    ("completing", r"(?P<name>.+?) is completing"),
    ("suspended", r"(?P<name>.+?) is suspended"),
    ("stopped", r"(?P<name>.+?) is stopped"),
    ("requeued", r"(?P<name>.+?) is being put back into the queue"),
    ("other", r"(?P<name>.+?) is in state (?P<elapsed>\S+)"),
)
STATES = tuple(state for state, _ in _FORMS)

_STAMPED = re.compile(r"\s*\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] (?P<rest>.*)", re.DOTALL)
_ALERT = re.compile(r"\*\*\*ALERT: (?P<text>.*?)\*\*\*\s*$", re.DOTALL)
_ABSENT = re.compile(r"(?P<name>.+?) is not RUNNING or SCHEDULED! Alert someone at (?P<team>.+)", re.DOTALL)
_TEAM = re.compile(r".*! Alert someone at (?P<team>.+)", re.DOTALL)
_JOB = re.compile(
    r"\((?P<job_id>[^()' ]+) on '(?P<partition>[^']*)' partition(?: \(?(?P<nodes>[^()]*)\)?)?\)?\s*(?:\(|$|;|:)"
)


def parse_pulse(line: str) -> Pulse | Alert | None:
    """The PULSE or ALERT that this line (without any rank prefix) is, else None.

    An original ALERT comes with or without the stamp and `PULSE:` before it; both are read.
    """
    stamped = _STAMPED.match(line)
    at = _moment(stamped["at"]) if stamped else None
    text = (stamped["rest"] if stamped else line.strip()).removeprefix("PULSE: ")
    alert = _ALERT.match(text)
    if alert:
        return _alert(at, alert["text"])
    if at is None or stamped is None or not stamped["rest"].startswith("PULSE: "):
        return None
    for state, form in _FORMS:
        match = re.match(form, text)
        if match:
            return _pulse(at, state, match, text)
    return None


def _alert(at: datetime | None, text: str) -> Alert:
    absent = _ABSENT.fullmatch(text)
    if absent:
        return Alert(at, absent["name"], absent["team"], text)
    team = _TEAM.fullmatch(text)
    name = next((m["name"] for _, form in _FORMS if (m := re.match(form, text))), "")
    return Alert(at, name, team["team"] if team else "", text)


def _pulse(at: datetime, state: str, match: re.Match[str], text: str) -> Pulse:
    said = match.groupdict()
    job = _JOB.search(text, match.end())
    return Pulse(
        at=at,
        name=said["name"],
        state=state,
        job_id=job["job_id"] if job else "",
        partition=job["partition"] if job else "",
        nodes=(job["nodes"] or "") if job else "",
        elapsed=said.get("elapsed") or "",
        starts_at=said.get("starts_at") or "",
        text=text,
    )


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
