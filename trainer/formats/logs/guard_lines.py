"""Log lines of the spike guard and of a stopping training."""

from __future__ import annotations

import enum
import re
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from trainer.formats.logs.log_lines import STAMPED, parse_stamp, stamp

if TYPE_CHECKING:
    from trainer.recipe.spike_guard import Judgement, Window


#: A part of every such line, for searches in a log's bytes.
MARKS = (b"spike guard: ",)
#: The action after an unusual step, in the log's words.
LOGGED, SKIPPED, UPDATED = "logged", "update skipped", "update made"
_UNUSUAL = re.compile(
    r"\s*spike guard: iteration (?P<iteration>\d{1,18}) is unusual: loss (?P<loss>\S+) \(\S+ deviations\), "
    r"gradient norm (?P<norm>\S+) \(\S+ deviations\): (?P<done>\w[\w ]*)"
)
_RERUN = re.compile(
    r"\s*spike guard: iteration (?P<iteration>\d{1,18}) was run again: (?P<found>hardware|data): (?P<why>.+)"
)
_BACK = re.compile(
    r"\s*spike guard: rolled back from iteration (?P<iteration>\d{1,18}) to (?P<to>\d{1,18}), "
    r"leaving out iterations (?P<first>\d{1,18}) to (?P<last>\d{1,18}): (?P<why>.+)"
)
_KEPT = re.compile(r"\s*spike guard: no rollback at iteration (?P<iteration>\d{1,18}): (?P<why>.+)")


class Unusual(msgspec.Struct, frozen=True):
    """A step with unusual loss or gradient norm, and the action taken."""

    iteration: int
    loss: float
    grad_norm: float
    done: str


class RunAgain(msgspec.Struct, frozen=True):
    """A step that was repeated."""

    iteration: int
    found: str  # "hardware" or "data"
    why: str

    @property
    def is_hardware(self) -> bool:
        """True if the same data gave a different result."""
        return self.found == "hardware"


class RolledBack(msgspec.Struct, frozen=True):
    """A rollback that also skips data."""

    iteration: int
    to: int
    first: int
    last: int
    why: str


class NotRolledBack(msgspec.Struct, frozen=True):
    """A rollback that was needed but not possible."""

    iteration: int
    why: str


GuardLine = Unusual | RunAgain | RolledBack | NotRolledBack


def write_unusual(iteration: int, judgement: Judgement, done: str) -> str:
    """Return the line of an unusual step."""
    return (
        f"spike guard: iteration {iteration} is unusual: loss {judgement.loss:.6g} "
        f"({_deviations(judgement.loss_deviations)} deviations), gradient norm {judgement.gradient_norm:.6g} "
        f"({_deviations(judgement.norm_deviations)} deviations): {done}"
    )


def write_run_again(line: RunAgain) -> str:
    """Return the line of a repeated step."""
    return f"spike guard: iteration {line.iteration} was run again: {line.found}: {line.why}"


def write_rolled_back(window: Window) -> str:
    """Return the line of a rollback."""
    return (
        f"spike guard: rolled back from iteration {window.found_at} to {window.rolled_back_to}, "
        f"leaving out iterations {window.first} to {window.last}: {window.why}"
    )


def write_not_rolled_back(line: NotRolledBack) -> str:
    """Return the line of an impossible rollback."""
    return f"spike guard: no rollback at iteration {line.iteration}: {line.why}"


def parse_guard_line(text: str) -> GuardLine | None:
    """Parse a line of the guard; None for any other."""
    if "spike guard: " not in text:
        return None
    if match := _UNUSUAL.match(text):
        return Unusual(int(match["iteration"]), float(match["loss"]), float(match["norm"]), match["done"])
    if match := _RERUN.match(text):
        return RunAgain(int(match["iteration"]), match["found"], match["why"])
    if match := _BACK.match(text):
        iteration, to, first, last = (int(match[name]) for name in ("iteration", "to", "first", "last"))
        return RolledBack(iteration, to, first, last, match["why"])
    if match := _KEPT.match(text):
        return NotRolledBack(int(match["iteration"]), match["why"])
    return None


def _deviations(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


class Reason(enum.StrEnum):
    """The reasons to stop, as leave lines, exit reports and attempts name them."""

    KILL_SWITCH = "kill-switch"
    STOP_REQUEST = "stop-request"
    SIGNAL = "signal"
    EXIT_DURATION = "exit-duration"
    EXIT_INTERVAL = "exit-interval"
    EXIT_SAMPLES = "exit-samples"
    SKIPPED_ITERATIONS = "skipped-iterations"
    OVERTAKEN = "overtaken"
    FINISHED = "finished"


#: Reasons without a save: the state is not better than the last checkpoint, and may be worse.
UNSAVED = frozenset({Reason.SKIPPED_ITERATIONS})
#: Reasons after which a trainer that still runs a minute later is stuck. After "finished" it may still evaluate.
LEAVES_EARLY = frozenset(Reason) - {Reason.FINISHED}


class Left(msgspec.Struct, frozen=True):
    """The reason why the trainer stopped."""

    reason: Reason
    detail: str  # its path, signal, iteration, minutes or writer
    at: datetime | None  # without a zone if the line has none; None: the line has no time


class _Form(NamedTuple):
    """One wording of a reason."""

    reason: Reason
    words: str  # the text that we write
    pattern: str  # the pattern that we read, which includes the originals' texts


#: The patterns are strings: most readers of a log never need them, and `re` caches compiled ones.
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
#: The job's words if the trainer was not even started.
_NOTHING_LEFT = _Form(
    Reason.FINISHED,
    "the training is finished, nothing is left to do. Exiting",
    r"the training is finished, nothing is left to do(?P<detail>)",
)
_WORDS = {form.reason: form.words for form in _FORMS}

#: Every line about an early stop contains one of these.
EARLY_MARKS = tuple(f"[{_WORDS[reason].partition('{')[0]}".encode() for reason in sorted(LEAVES_EARLY))


def leave_line(reason: Reason, detail: object = "", at: datetime | None = None) -> str:
    """Return the stamped line for `reason`, at `at` or now. `detail` goes to `Left.detail`."""
    return stamp(_WORDS[reason].format(detail=detail), at)


def nothing_left_line(at: datetime | None = None) -> str:
    """Return the stamped line of a task that finds the training already finished."""
    return stamp(_NOTHING_LEFT.words, at)


def parse_leave(text: str) -> Left | None:
    """Return why the trainer stopped; None for any other line. Without a stamp, nothing may follow."""
    if not any(mark in text for mark in ("datetime: ", "xiting", "etected")):
        return None
    stamped = parse_stamp(text)
    if stamped is None and STAMPED.match(text):
        return None  # an invalid date
    for form in (*_FORMS, _NOTHING_LEFT):
        if match := re.search(form.pattern, stamped.what if stamped else text):
            return Left(form.reason, match["detail"] or "", stamped.at if stamped else None)
    return None
