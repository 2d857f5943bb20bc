"""Write and read the watchdog's PULSE and ALERT lines, with one table of words for both.

The forms of BigScience's watchdog keep its words, which other tools search for. Ours closes the last parenthesis, which
the original left open, and ends with the time zone, ` [+01:00]`.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import cache

from opsctl.run.logs.records import Alert, Pulse, WatchdogState
from trainer.formats.logs.log_lines import CLOCK, ZONE, Stamp, parse_clock, write_clock, write_zone

#: State -> the words after the training's name; the job in parentheses follows. "unknown" is only read.
FORMS = {
    "running": "is running for {elapsed} since {starts_at}",
    "array-limit": "is waiting for the previous Job Array job to finish before scheduling a new one",
    "dependency": (
        "is waiting for the previous job to finish before scheduling a new one using the dependency mechanism"
    ),
    "pending": "is waiting to be scheduled",
    "scheduled": "is scheduled to start in {elapsed} (at {starts_at})",
    "unknown": "is unknown - fix me: (at {starts_at})",
    "finished": "is finished: {detail}",
    "held": "is held ({reason}) and starts when it is released",
    "cannot-start": "cannot start as it was submitted ({reason})",
    "blind": "cannot be seen: {detail}",
    "unsubmitted": "was never submitted",
    "never": "waits for a dependency that can never be satisfied",
    "configuring": "is getting its nodes ready since {starts_at}",
    "completing": "is completing after {elapsed}",
    "suspended": "is suspended after {elapsed}",
    "stopped": "is stopped after {elapsed}",
    "requeued": "is being put back into the queue",
    "other": "is in state {reason}",
    "absent": "is not RUNNING or SCHEDULED",
    "rests": "was stopped on purpose: {detail}",
}
#: Field of a form -> the pattern of its value.
_FIELDS = {
    "elapsed": r"(?P<elapsed>.+?)",
    "starts_at": r"(?P<starts_at>[^()]*?)",
    "reason": r"(?P<reason>[^()]+?)",
    "detail": r"(?P<detail>.+)",
}

_PULSE, _ALERT_BEGINS = "PULSE: ", "***ALERT: "
_STAMPED = re.compile(rf"\s*\[(?P<at>{CLOCK})\] (?P<rest>.*?)(?: \[(?P<zone>{ZONE})\]\s*)?", re.DOTALL)
_ALERT = re.compile(r"\*\*\*ALERT: (?P<text>.*?)\*\*\*\s*$", re.DOTALL)
_CALL = re.compile(r"(?P<words>.*)! Alert someone at (?P<team>.+)", re.DOTALL)
_JOB = re.compile(
    r"\((?P<job_id>[^()' ]+) on '(?P<partition>[^']*)' partition(?: \(?(?P<nodes>[^()]*)\)?)?\)?\s*(?:\(|$|;|:)"
)


def words_of(seen: WatchdogState) -> str:
    """Return the text after PULSE for a state. Raises KeyError for a state that is not in `FORMS`."""
    values = {name: getattr(seen, name) for name in _FIELDS}
    words = f"{seen.name} {FORMS[seen.state].format_map(values)}"
    if not seen.job_id:
        return words
    nodes = f" ({seen.nodes})" if seen.nodes else ""
    return f"{words} ({seen.job_id} on '{seen.partition}' partition{nodes})"


def pulse_line(at: datetime, words: str, alert: str | None = None) -> str:
    """Return the line with the local time of `at`, or with `alert` as an ALERT that calls for that team."""
    text = alert_line(f"{words}! Alert someone at {alert}") if alert else words
    here = at.astimezone()
    return f"[{write_clock(here)}] {_PULSE}{text} [{write_zone(here)}]"


def alert_line(words: str) -> str:
    """Return an ALERT without a time, as the job itself writes it into the log."""
    return f"{_ALERT_BEGINS}{words}***"


def is_watchdogs(text: str) -> bool:
    """Return True if a line may be a watchdog's: a fast test before parsing."""
    return _PULSE in text or _ALERT_BEGINS in text


def parse_pulse(line: str) -> Pulse | Alert | None:
    """Return the PULSE or ALERT that this line is, else None. An original ALERT may lack the stamp."""
    stamped = _STAMPED.fullmatch(line)
    at = parse_clock(stamped["at"], stamped["zone"]) if stamped else None
    text = (stamped["rest"] if stamped else line.strip()).removeprefix(_PULSE)
    alert = _ALERT.match(text)
    if alert:
        return _alert(at, alert["text"])
    if at is None or stamped is None or not stamped["rest"].startswith(_PULSE):
        return None
    found = _form_of(text)
    if found is None or found[0] == "absent":
        return None
    return _pulse(at, *found, text)


def parse_watchdog_stamp(line: str) -> Stamp | None:
    """Return the time of a watchdog's line in none of `FORMS`, as most checks write; None for other lines."""
    stamped = _STAMPED.fullmatch(line)
    at = parse_clock(stamped["at"], stamped["zone"]) if stamped and stamped["rest"].startswith(_PULSE) else None
    return Stamp("watchdog", at) if at is not None else None


def _alert(at: datetime | None, text: str) -> Alert:
    call = _CALL.fullmatch(text)
    found = _form_of(call["words"] if call else text)
    return Alert(at, found[1]["name"] if found else "", call["team"] if call else "", text)


def _pulse(at: datetime, state: str, match: re.Match[str], text: str) -> Pulse:
    job = _JOB.search(text, match.end())
    place = {name: value or "" for name, value in job.groupdict().items()} if job else {}
    return Pulse(at=at, state=state, text=text, **match.groupdict(), **place)


def _form_of(text: str) -> tuple[str, re.Match[str]] | None:
    """Return state and match of `text`. A training may be named like a form, so the longest name is right."""
    found = [(state, match) for state, pattern in _patterns() if (match := pattern.match(text))]
    return max(found, key=lambda one: one[1].end("name"), default=None)


@cache
def _patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Compile the patterns at the first watchdog's line: most readers of a log need none."""
    patterns = []
    for state, form in FORMS.items():
        words = re.escape(form)
        for name, pattern in _FIELDS.items():
            words = words.replace(re.escape(f"{{{name}}}"), pattern)
        patterns.append((state, re.compile(rf"(?P<name>.+) {words}(?=\s*(?:\(|$))")))
    return patterns
