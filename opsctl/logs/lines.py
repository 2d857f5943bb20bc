"""A training log's lines to typed records: what the trainer writes, then what opsctl writes into it. Pure.

A line that is no record (DeepSpeed's chatter, tracebacks, half of a line) is None, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from opsctl.logs import pulse
from opsctl.logs.attempt_lines import parse_attempt_time
from opsctl.logs.records import Record
from trainer.formats import training_line
from trainer.formats.guard_lines import parse_guard_line
from trainer.formats.leave_lines import parse_leave
from trainer.formats.log_lines import parse_checkpoint_line, parse_evaluation, parse_stamp, parse_timers
from trainer.formats.training_line import TrainingLine, parse_training_line

_PREFIX = re.compile(r"(?:\d+:\s?)?(?:\[[A-Za-z_]*(?P<local_rank>\d+)\]:)?")


def split_prefix(line: str) -> tuple[int | None, str]:
    """The local rank in front of a launcher's line (`[default3]:`), None without one, and what follows it."""
    match = _PREFIX.match(line)
    if match and match["local_rank"] is not None:
        return int(match["local_rank"]), line[match.end() :]
    return None, line


def parse_line(line: str) -> Record | None:
    """The record in this line, or None. Line ends inside it, where a mail program wrapped it, are taken out."""
    _, text = split_prefix(line.replace("\n", "").rstrip("\r"))
    if pulse.is_watchdogs(text):
        return pulse.parse_pulse(text) or pulse.parse_said_at(text)
    return (
        parse_training_line(text)
        or parse_evaluation(text)
        or parse_checkpoint_line(text)
        or parse_timers(text)
        or parse_attempt_time(text)
        or parse_leave(text)
        or parse_stamp(text)
        or parse_guard_line(text)
    )


def parse_lines(lines: Iterable[str]) -> Iterable[Record]:
    """The records among `lines`, in their order."""
    return (record for line in lines if (record := parse_line(line)) is not None)


def iteration_losses(text: str) -> list[tuple[int, float]]:
    """(iteration, loss) of every training line in `text` that has a loss, in the log's order."""
    marks = [mark.decode() for mark in training_line.MARKS]
    records = parse_lines(line for line in text.splitlines() if any(mark in line for mark in marks))
    return [(one.iteration, one.loss) for one in records if isinstance(one, TrainingLine) and one.loss is not None]
