"""Why a training leaves: the reasons, and the lines in which the trainer, or the job in its place, says so."""

from __future__ import annotations

import enum
import re
from datetime import datetime
from typing import NamedTuple

import msgspec

from trainer.formats.logs.log_lines import STAMPED, parse_stamp, stamp


class Reason(enum.StrEnum):
    """What leaving lines, exit reports and attempts call it."""

    KILL_SWITCH = "kill-switch"
    STOP_REQUEST = "stop-request"
    SIGNAL = "signal"
    EXIT_DURATION = "exit-duration"
    EXIT_INTERVAL = "exit-interval"
    EXIT_SAMPLES = "exit-samples"
    SKIPPED_ITERATIONS = "skipped-iterations"
    OVERTAKEN = "overtaken"
    FINISHED = "finished"


#: After these nothing is saved: what would be is no better than the checkpoint before it, and may be worse.
UNSAVED = frozenset({Reason.SKIPPED_ITERATIONS})
#: Reasons after which a trainer that is still there a minute later is stuck; after "finished" it may still evaluate.
LEAVES_EARLY = frozenset(Reason) - {Reason.FINISHED}


class Left(msgspec.Struct, frozen=True):
    """Why the trainer left."""

    reason: Reason
    detail: str  # the path, signal, iteration, minutes or writer that it names
    at: datetime | None  # without a zone where the line says none; None: the line has no time


class _Form(NamedTuple):
    """One way of saying a reason."""

    reason: Reason
    words: str  # what we write
    pattern: str  # what is read, the originals' too


#: The patterns are text: most readers of a log meet none of these lines, and `re` keeps what it has compiled.
_FORMS = (
    _Form(
        Reason.KILL_SWITCH,
        "Detected kill switch at {detail}. Exiting",
        r"Detected kill switch at (?P<detail>.+?)(?:\. Exiting|, iteration=\d+\. Exiting|$)",
    ),
    _Form(
        Reason.EXIT_INTERVAL,
        "exiting program at iteration {detail}",
        r"exiting program at iteration\s+(?P<detail>\d+)",
    ),
    _Form(
        Reason.EXIT_DURATION,
        "exiting program after {detail} minutes",
        r"exiting program after (?P<detail>[\d.]+(?:e[+-]?\d+)?) minutes",
    ),
    _Form(
        Reason.EXIT_SAMPLES,
        "exiting program after {detail} samples",
        r"exiting program after (?P<detail>\d+) samples",
    ),
    _Form(
        Reason.SKIPPED_ITERATIONS,
        "exiting program after {detail} skipped or nan iterations in a row (--max-skipped-iterations)",
        r"exiting program after (?P<detail>\d+) skipped or nan iterations in a row",
    ),
    _Form(
        Reason.SIGNAL,
        "exiting program after receiving {detail}",
        r"exiting program after receiving (?P<detail>\w+)",
    ),
    _Form(
        Reason.STOP_REQUEST,
        "Detected stop request at {detail}. Exiting",
        r"Detected stop request(?: at (?P<detail>.+?))?(?:\. Exiting|$)",
    ),
    _Form(
        Reason.OVERTAKEN,
        "Overtaken by another writer: {detail}. Exiting",
        r"Overtaken by another writer: (?P<detail>.+?)(?:\. Exiting|$)",
    ),
    _Form(Reason.FINISHED, "after training is done", r"after training is done(?P<detail>)"),
)
#: The job's words where the trainer was not even started.
_NOTHING_LEFT = _Form(
    Reason.FINISHED,
    "the training is finished, nothing is left to do. Exiting",
    r"the training is finished, nothing is left to do(?P<detail>)",
)
_WORDS = {form.reason: form.words for form in _FORMS}

#: One of these is in every line that says that the trainer leaves early.
EARLY_MARKS = tuple(f"[{_WORDS[reason].partition('{')[0]}".encode() for reason in sorted(LEAVES_EARLY))


def leave_line(reason: Reason, detail: object = "", at: datetime | None = None) -> str:
    """The stamped line for `reason`, now without `at`; `detail` is what `Left` has of it."""
    return stamp(_WORDS[reason].format(detail=detail), at)


def nothing_left_line(at: datetime | None = None) -> str:
    """The stamped line of a task that finds the training finished before it begins."""
    return stamp(_NOTHING_LEFT.words, at)


def parse_leave(text: str) -> Left | None:
    """Why the trainer left, None for a line that does not say it; without its stamp a line says no more than that."""
    if not any(mark in text for mark in ("datetime: ", "xiting", "etected")):
        return None
    stamped = parse_stamp(text)
    if stamped is None and STAMPED.match(text):
        return None  # a moment that no calendar has: nobody's line
    for form in (*_FORMS, _NOTHING_LEFT):
        if match := re.search(form.pattern, stamped.what if stamped else text):
            return Left(form.reason, match["detail"] or "", stamped.at if stamped else None)
    return None
