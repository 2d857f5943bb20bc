"""The other lines of a training log, written exactly as Megatron-DeepSpeed prints them, and read back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from trainer.formats.logs.training_line import number_or_none, numbers

#: Every line of this module that is parsed contains one of these, for searches in a log's bytes.
TIMER_MARKS = (b"time (ms) |",)
MARKS = (*TIMER_MARKS, b" loss at ", b"checkpoint", b"datetime: ")
#: The seconds in which a save stopped the training, and the seconds in which its files were written.
SAVE_TIMER, BACKGROUND_TIMER = "save-checkpoint", "save-checkpoint-background"
# Larger perplexities are meaningless numbers of hundreds of digits.
_LARGEST_LOGGED_EXPONENT = 20.0
_ARGUMENT_COLUMN = 48
FROM_RANDOM = "will not load any checkpoints and will start from random"

_EVALUATION = re.compile(
    r"\s*(?P<group>\S.*?) loss at (?:iteration (?P<iteration>\d{1,18})(?: on (?P<on>\w+) set)?"
    r"|the end of training for (?P<data>\w+) data)\s*\|"
    r" (?:lm|LM) loss(?: value)?\s?[:=]\s*(?P<loss>\S+) \|"
    r"(?: (?:lm loss|LM) PPL\s?[:=]\s*(?P<perplexity>\S+) \|)?"
)
_SAVING = re.compile(r"\s*saving checkpoint at iteration\s+(?P<iteration>\d{1,18}) to (?P<folder>.+)")
_FAILED = re.compile(
    r"\s*failed to save checkpoint at iteration\s+(?P<iteration>\d{1,18}) to (?P<folder>.+?): (?P<why>.+); "
    r"the next save will hold up the training until it is written"
)
_NOT_FINITE = re.compile(
    r"\s*did not save checkpoint at iteration\s+(?P<iteration>\d{1,18}) to (?P<folder>.+?): (?P<why>.+); "
    r"the latest checkpoint is unchanged"
)
_SAVED = re.compile(
    r"\s*successfully saved checkpoint (?:at|from) iteration\s+(?P<iteration>\d{1,18}) to (?P<folder>.+)"
)
_LOADED = re.compile(r"\s*successfully loaded checkpoint from (?P<folder>.+) at iteration\s+(?P<iteration>\d{1,18})")
_DATA = {"validation": "val", "test": "test"}  # Megatron-core's words: ours
_TIMERS = re.compile(r"\s*time \(ms\)(?P<parts>.*)")
#: A time as a log's lines have it: local, to the second.
CLOCK = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
#: The zone at the end of our lines. The originals and our old lines have none.
ZONE = r"[+-]\d\d:\d\d"
#: The start of every stamped line.
STAMPED = re.compile(rf"\s*\[(?P<what>[^\]]+)\] datetime: (?P<at>{CLOCK})(?: (?P<zone>{ZONE})(?!\S))?")


class Evaluation(msgspec.Struct, frozen=True):
    """One group's evaluation."""

    group: str  # "valid", "validation", or the name of a weighted data group
    iteration: int | None  # None: at the end of training
    loss: float
    perplexity: float | None
    data: str = "val"  # at the end of training, the data: "val" or "test"


class Timers(msgspec.Struct, frozen=True):
    """`time (ms) | name: value | ...`."""

    milliseconds: Mapping[str, float]


class CheckpointSaving(msgspec.Struct, frozen=True):
    """The start of a save."""

    iteration: int
    folder: str


class CheckpointSaved(msgspec.Struct, frozen=True):
    """The end of a save."""

    iteration: int
    folder: str


class CheckpointFailed(msgspec.Struct, frozen=True):
    """A failed background save, or a state that was not finite and was not saved."""

    iteration: int
    folder: str
    why: str
    not_finite: bool = False


class CheckpointLoaded(msgspec.Struct, frozen=True):
    """The checkpoint from which the trainer resumes."""

    iteration: int
    folder: str


class FreshStart(msgspec.Struct, frozen=True):
    """A start from random weights, because no checkpoint was found."""


class Stamp(msgspec.Struct, frozen=True):
    """`[what] datetime: ...`."""

    what: str
    at: datetime  # without a zone if the line has none: its age is unknown


def perplexity(loss: float) -> float:
    """Return exp of the loss in nats, at most exp 20."""
    return math.exp(min(_LARGEST_LOGGED_EXPONENT, loss))


def write_evaluation(found: Evaluation) -> str:
    """Return three lines: the evaluation between two rules."""
    when = (
        f"iteration {found.iteration}" if found.iteration is not None else f"the end of training for {found.data} data"
    )
    known = "" if found.perplexity is None else f"lm loss PPL: {found.perplexity:.6E} | "
    line = f" {found.group} loss at {when} | lm loss value: {found.loss:.6E} | {known}"
    rule = "-" * (len(line) + 1)
    return f"{rule}\n{line}\n{rule}"


def parse_evaluation(text: str) -> Evaluation | None:
    """Parse the line between the rules; None for any other."""
    match = _EVALUATION.match(text) if "loss at" in text else None
    loss = number_or_none(match["loss"]) if match else None
    if match is None or loss is None:
        return None
    iteration = int(match["iteration"]) if match["iteration"] else None
    known = number_or_none(match["perplexity"]) if match["perplexity"] else None
    return Evaluation(match["group"], iteration, loss, known, _DATA.get(match["on"], match["data"] or "val"))


def write_timers(timers: Timers) -> str:
    """Return the line of the timers."""
    return "time (ms)" + "".join(f" | {name}: {value:.2f}" for name, value in timers.milliseconds.items())


def parse_timers(text: str) -> Timers | None:
    """Parse a line of timers; None for any other."""
    match = _TIMERS.match(text) if "time (ms)" in text else None
    return Timers(numbers(match["parts"])) if match else None


def write_checkpoint_line(line: CheckpointSaving | CheckpointSaved | CheckpointFailed | CheckpointLoaded) -> str:
    """Return the line of a checkpoint's save, failure or load."""
    match line:
        case CheckpointSaving(iteration, folder):
            return f"saving checkpoint at iteration {iteration:7d} to {folder}"
        case CheckpointSaved(iteration, folder):
            return f"  successfully saved checkpoint at iteration {iteration:7d} to {folder}"
        case CheckpointFailed(iteration, folder, why, not_finite=True):
            return (
                f"  did not save checkpoint at iteration {iteration:7d} to {folder}: {why}; "
                "the latest checkpoint is unchanged"
            )
        case CheckpointFailed(iteration, folder, why):
            return (
                f"  failed to save checkpoint at iteration {iteration:7d} to {folder}: {why}; "
                "the next save will hold up the training until it is written"
            )
        case CheckpointLoaded(iteration, folder):
            return f"  successfully loaded checkpoint from {folder} at iteration {iteration}"


def write_fresh_start(latest: Path) -> str:
    """Return three lines. `latest` is the file that was not found. The last line is the one that is parsed."""
    return (
        f"Unable to find latest file at {latest}, so the training starts at its beginning.\n"
        f"WARNING: could not find the metadata file {latest.parent}\n"
        f"    {FROM_RANDOM}"
    )


def parse_checkpoint_line(
    text: str,
) -> CheckpointSaving | CheckpointSaved | CheckpointFailed | CheckpointLoaded | FreshStart | None:
    """Parse a line about a checkpoint; None for any other."""
    if "checkpoint" not in text:
        return None
    if match := _SAVED.match(text):
        return CheckpointSaved(int(match["iteration"]), _folder(match["folder"]))
    if match := _SAVING.match(text):
        return CheckpointSaving(int(match["iteration"]), _folder(match["folder"]))
    if match := _FAILED.match(text):
        return CheckpointFailed(int(match["iteration"]), match["folder"].strip(), match["why"])
    if match := _NOT_FINITE.match(text):
        return CheckpointFailed(int(match["iteration"]), match["folder"].strip(), match["why"], not_finite=True)
    if match := _LOADED.match(text):
        return CheckpointLoaded(int(match["iteration"]), _folder(match["folder"]))
    return FreshStart() if FROM_RANDOM in text else None


def _folder(text: str) -> str:
    """Return the folder without Megatron-core's remarks on format and rank."""
    folder = text.partition(" [ t ")[0].strip()
    return folder.rpartition(" in ")[0] if folder.endswith(" format") and " in " in folder else folder


def stamp(what: str, at: datetime | None = None) -> str:
    """Return `[what] datetime: 2022-03-11 14:03:12 +01:00`, at `at` or now. The original ends before the zone."""
    moment = at or datetime.now().astimezone()
    return f"[{what}] datetime: {write_clock(moment)} {write_zone(moment)}"


def parse_stamp(text: str) -> Stamp | None:
    """Parse a stamped line; None for any other and for an invalid date."""
    match = STAMPED.match(text) if "datetime: " in text else None
    at = parse_clock(match["at"], match["zone"]) if match else None
    return Stamp(match["what"], at) if match and at else None


def write_clock(moment: datetime) -> str:
    """Return `2022-03-11 14:03:12`, the local time whose zone `write_zone` returns."""
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def write_zone(moment: datetime) -> str:
    """Return `+01:00`; empty for a time without a zone."""
    offset = f"{moment:%z}"
    return f"{offset[:3]}:{offset[3:5]}" if offset else ""


def parse_clock(clock: str, zone: str | None) -> datetime | None:
    """Return the time that `CLOCK` and `ZONE` matched, without a zone if `ZONE` matched nothing. None if invalid."""
    return parse_moment(f"{clock}{zone or ''}")


def parse_moment(text: str) -> datetime | None:
    """Parse an ISO 8601 time, without a zone if the text has none; None for an invalid date."""
    try:
        moment = datetime.fromisoformat(text)
        moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)  # a zone may move it before year 1
    except (ValueError, OverflowError):
        return None
    return moment


def argument_lines(options: Mapping[str, Any]) -> str:
    """Return every option and its value, sorted and aligned with dots. For people; no program parses it."""
    lines = sorted(
        (f"  {key} {'.' * (_ARGUMENT_COLUMN - len(key))} {value}" for key, value in options.items()), key=str.lower
    )
    return "\n".join(
        [
            "------------------------ arguments ------------------------",
            *lines,
            "-------------------- end of arguments ---------------------",
        ]
    )
