"""A training log's lines to typed records: what the trainer writes, then what opsctl writes into it. Pure.

A line that is no record (DeepSpeed's chatter, tracebacks, half of a line) is None, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from opsctl.run.logs import pulse
from opsctl.run.logs.attempt_lines import parse_attempt_time
from opsctl.run.logs.other_lines import parse_setting, parse_skipped, parse_titan_line
from opsctl.run.logs.records import Record
from trainer.formats.logs import training_line
from trainer.formats.logs.guard_lines import parse_guard_line
from trainer.formats.logs.leave_lines import parse_leave
from trainer.formats.logs.log_lines import (
    CLOCK,
    parse_checkpoint_line,
    parse_clock,
    parse_evaluation,
    parse_stamp,
    parse_timers,
)
from trainer.formats.logs.training_line import TrainingLine, parse_training_line

_PREFIX = re.compile(r"(?:\d+:\s?)?(?:\[[A-Za-z_]*(?P<local_rank>\d+)\]:)?")

#: `[2026-04-27 00:00:03] `, or what Argonne's fork prints, `[2024-09-16 22:59:19.287338][INFO][training_log:661] -  `.
_LOGGER = re.compile(rf"\s*\[(?P<at>{CLOCK})(?:[.,]\d{{1,9}})?\](?:\[\w+\]\[[^\]]*\] -)? ")


def split_prefix(line: str) -> tuple[int | None, str]:
    """The local rank in front of a launcher's line (`[default3]:`), None without one, and what follows it."""
    match = _PREFIX.match(line)
    if match and match["local_rank"] is not None:
        return int(match["local_rank"]), line[match.end() :]
    return None, line


def split_logger(text: str) -> tuple[datetime | None, str]:
    """The moment that a logger put before the line, without a zone, and what follows it; None where none did."""
    match = _LOGGER.match(text) if text.lstrip().startswith("[2") else None
    at = parse_clock(match["at"], None) if match else None
    return (at, text[match.end() :]) if match and at else (None, text)


def parse_line(line: str) -> Record | None:
    """The record in this line, or None. Line ends inside it, where a mail program wrapped it, are taken out."""
    _, text = split_prefix(line.replace("\n", "").rstrip("\r"))
    if "\n" in line:
        text = closed(text)
    if pulse.is_watchdogs(text):
        return pulse.parse_pulse(text) or pulse.parse_said_at(text)
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


def closed(text: str) -> str:
    """A line that was put together again: what broke it may have taken the `|` after an iteration's last part."""
    return f"{text} |" if is_of_an_iteration(text) and not text.rstrip().endswith("|") else text


def parse_lines(lines: Iterable[str]) -> Iterable[Record]:
    """The records among `lines`, in their order."""
    return (record for line in lines if (record := parse_line(line)) is not None)


def is_of_an_iteration(line: str) -> bool:
    """Whether it is a line that a training prints for an iteration, by its mark."""
    return any(mark.decode() in line for mark in training_line.MARKS)


def iteration_losses(text: str) -> list[tuple[int, float]]:
    """(iteration, loss) of every training line in `text` that has a loss, in the log's order."""
    records = parse_lines(filter(is_of_an_iteration, text.splitlines()))
    return [(one.iteration, one.loss) for one in records if isinstance(one, TrainingLine) and one.loss is not None]
