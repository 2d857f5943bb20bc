"""Parse lines of a training log into typed records: the trainer's lines, and opsctl's own. Pure.

Other lines (DeepSpeed's messages, tracebacks, incomplete lines) give None, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

import msgspec

from opsctl.core.timestamps import iso
from opsctl.run.logs import pulse
from opsctl.run.logs.records import Record, Setting, SkippedRange
from opsctl.run.logs.titan_lines import MARK, parse_titan_line, titan_layout
from trainer.formats.logs.guard_lines import parse_guard_line, parse_leave
from trainer.formats.logs.log_lines import (
    CLOCK,
    Stamp,
    parse_checkpoint_line,
    parse_clock,
    parse_evaluation,
    parse_moment,
    parse_stamp,
    parse_timers,
)
from trainer.formats.logs.training_line import Layout, TrainingLine, layout_like, parse_training_line

#: Every line that this module parses has one of these; used for searching a log's bytes.
OTHER_MARKS = (MARK, b"length ...", b"size ...", b"iters ...", b"Skipped iterations ")

_ARGUMENT = re.compile(r"\s*(?P<name>[a-z][a-z_-]{2,60}) \.{3,64} (?P<value>\d{1,18})\s*")
_ARGUMENTS = {
    "seq_length": "sequence_length",
    "world_size": "world_size",
    "global_batch_size": "global_batch_size",
    "train_iters": "total_iterations",
}
_SKIPPED = re.compile(r"\s*Skipped iterations (?P<first>\d{1,18}) to (?P<last>\d{1,18}) due to ")


def parse_setting(text: str) -> Setting | None:
    """Parse a line of the argument list; None for other lines and arguments."""
    match = _ARGUMENT.fullmatch(text) if " ..." in text else None
    field = _ARGUMENTS.get(match["name"].replace("-", "_")) if match else None
    return Setting(**{field: int(match["value"])}) if match and field else None


def parse_skipped(text: str) -> SkippedRange | None:
    """Return the skipped range in a line, else None."""
    match = _SKIPPED.match(text) if "Skipped iterations " in text else None
    return SkippedRange(int(match["first"]), int(match["last"])) if match else None


#: Every such line has this; used for searching a log's bytes.
ATTEMPT_MARKS = (b" TIME: ",)
_START, _END = "START TIME", "END TIME"
_TIME_LINE = re.compile(rf"(?P<what>{_START}|{_END}): (?P<at>\S+) attempt ")

_START_LINE = re.compile(
    rf"{_START}: (?P<at>\S+) attempt (?P<attempt>\d{{1,9}}), job (?P<job>\S+) "
    r"\((?P<job_id>\d{1,18})(?:, requeued (?P<requeues>\d{1,9}) times)?\), revision (?P<revision>\S*), "
    r"from (?:the beginning|iteration (?P<iteration>\d{1,18})), nodes (?P<nodes>.*)"
)


class AttemptStart(msgspec.Struct, frozen=True, kw_only=True):
    """The start of an attempt."""

    at: datetime  # with zone
    attempt: int
    job: str  # as squeue shows it
    job_id: int
    requeues: int  # earlier requeues of this job
    revision: str
    iteration: int | None  # that it resumes from; None: the beginning
    nodes: tuple[str, ...]


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an attempt."""

    at: datetime  # with zone
    attempt: int
    reason: str
    exit_code: int | None
    checkpoint: int | None  # iteration of the last complete one
    first_failure: str = ""  # in a few words


def write_attempt_start(start: AttemptStart) -> str:
    """Return the line."""
    origin = "the beginning" if start.iteration is None else f"iteration {start.iteration}"
    again = f", requeued {start.requeues} times" if start.requeues else ""
    return (
        f"{_START}: {iso(start.at)} attempt {start.attempt}, job {start.job} ({start.job_id}{again}), "
        f"revision {start.revision}, from {origin}, nodes {' '.join(start.nodes)}"
    )


def write_attempt_end(end: AttemptEnd) -> str:
    """Return the line."""
    failed = f", first failure: {end.first_failure}" if end.first_failure else ""
    saved = "none" if end.checkpoint is None else f"iteration {end.checkpoint}"
    return (
        f"{_END}: {iso(end.at)} attempt {end.attempt} ended: {end.reason}, "
        f"exit code {end.exit_code}, last checkpoint {saved}{failed}"
    )


def parse_attempt_start(text: str) -> AttemptStart | None:
    """Parse the start line of an attempt; None for other lines."""
    match = _START_LINE.match(text) if text.startswith(_START) else None
    at = parse_moment(match["at"]) if match else None
    if match is None or at is None:
        return None
    return AttemptStart(
        at=at,
        attempt=int(match["attempt"]),
        job=match["job"],
        job_id=int(match["job_id"]),
        requeues=int(match["requeues"] or 0),
        revision=match["revision"],
        iteration=int(match["iteration"]) if match["iteration"] else None,
        nodes=tuple(match["nodes"].split()),
    )


def parse_attempt_time(text: str) -> Stamp | None:
    """Return the time of an attempt's start or end line, else None."""
    match = _TIME_LINE.match(text) if " TIME: " in text else None
    at = parse_moment(match["at"]) if match else None
    return Stamp(match["what"], at) if match and at else None


_PREFIX = re.compile(r"(?:\d+:\s?)?(?:\[[A-Za-z_]*(?P<local_rank>\d+)\]:)?")

#: `[2026-04-27 00:00:03] `, or in Argonne's fork `[2024-09-16 22:59:19.287338][INFO][training_log:661] -  `.
_LOGGER = re.compile(rf"\s*\[(?P<at>{CLOCK})(?:[.,]\d{{1,9}})?\](?:\[\w+\]\[[^\]]*\] -)? ")


def split_prefix(line: str) -> tuple[int | None, str]:
    """Return the local rank of a launcher's prefix (`[default3]:`), or None, and the rest of the line."""
    match = _PREFIX.match(line)
    if match and match["local_rank"] is not None:
        return int(match["local_rank"]), line[match.end() :]
    return None, line


def split_logger(text: str) -> tuple[datetime | None, str]:
    """Return the time of a logger's prefix, without a zone, or None, and the rest of the line."""
    match = _LOGGER.match(text) if text.lstrip().startswith("[2") else None
    at = parse_clock(match["at"], None) if match else None
    return (at, text[match.end() :]) if match and at else (None, text)


def parse_line(line: str) -> Record | None:
    """Return the record in this line, or None."""
    _, text = split_prefix(line.rstrip("\r\n"))
    if pulse.is_watchdogs(text):
        return pulse.parse_pulse(text) or pulse.parse_watchdog_stamp(text)
    at, text = split_logger(text)
    return (
        parse_training_line(text, at)
        or parse_evaluation(text)
        or parse_checkpoint_line(text)
        or parse_timers(text)
        or parse_attempt_time(text)
        or parse_leave(text)
        or parse_stamp(text)
        or parse_guard_line(text)
        or parse_titan_line(text)
        or parse_skipped(text)
        or parse_setting(text)
    )


def parse_lines(lines: Iterable[str]) -> Iterable[Record]:
    """Return the records among `lines`, in order."""
    return (record for line in lines if (record := parse_line(line)) is not None)


def is_of_an_iteration(line: str) -> bool:
    """Return True for the line of an iteration, of any trainer."""
    return isinstance(parse_line(line), TrainingLine)


def iteration_losses(text: str) -> list[tuple[int, float]]:
    """Return (iteration, loss) of every training line in `text` with a loss, in order."""
    records = parse_lines(text.splitlines())
    return [(one.iteration, one.loss) for one in records if isinstance(one, TrainingLine) and one.loss is not None]


@lru_cache(maxsize=16)
def layout_of(example: str) -> Layout | None:
    """Return the layout of lines like `example`, a whole line of a log; None if each line has to be parsed alone."""
    _, rest = split_prefix(example)
    if MARK.decode() in rest:
        layout: Layout | None = titan_layout(example.removesuffix(rest), rest)
    else:
        stamp, text = split_logger(rest)
        pattern = _PREFIX.pattern if stamp is None else _PREFIX.pattern + _LOGGER.pattern.replace("\\s*", "[ \\t]*")
        read_stamp = None if stamp is None else _logged_at
        layout = layout_like(text, pattern.replace("(?P<local_rank>", "(?:"), read_stamp)
    alike = layout.read(f"{example}\n".encode(), 0)[0] if layout is not None else None
    return layout if alike is not None and [*alike.lines()] == [parse_line(example)] else None


def _logged_at(clock: bytes) -> datetime | None:
    return parse_clock(clock.decode(), None)


def read_alike(text: str, example: str) -> TrainingLine | None:
    """Return the record of a line of the same layout as `example`; None for any other, and without an example."""
    layout = layout_of(example) if example else None
    alike = layout.read(f"{text}\n".encode(errors="replace"), 0)[0] if layout is not None else None
    return next(alike.lines()) if alike is not None else None
