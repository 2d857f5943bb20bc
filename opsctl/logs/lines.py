"""A training log's lines to typed records, in every variant that Megatron-DeepSpeed has printed. Pure.

A line that is no record (DeepSpeed's chatter, tracebacks, half of a line) is None, never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

from opsctl.logs.pulse import parse_pulse
from opsctl.logs.records import (
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointSaving,
    Evaluation,
    FreshStart,
    Iteration,
    Left,
    Record,
    Stamp,
    Timers,
)

_PREFIX = re.compile(r"(?:\d+:\s?)?(?:\[[A-Za-z_]*(?P<local_rank>\d+)\]:)?")
_ITERATION = re.compile(r"\s*iteration\s+(?P<iteration>\d+)\s*/\s*(?P<total>\d+)\s*\|(?P<parts>.*)", re.DOTALL)
_EVALUATION = re.compile(
    r"\s*(?P<group>\S.*?) loss at (?:iteration (?P<iteration>\d+)|the end of training for \w+ data)\s*\|"
    r" lm loss value: (?P<loss>\S+) \|(?: lm loss PPL: (?P<ppl>\S+) \|)?"
)
_SAVING = re.compile(r"\s*saving checkpoint at iteration\s+(?P<iteration>\d+) to (?P<folder>.+)")
_SAVED = re.compile(r"\s*successfully saved checkpoint at iteration\s+(?P<iteration>\d+) to (?P<folder>.+)")
_LOADED = re.compile(r"\s*successfully loaded checkpoint from (?P<folder>.+) at iteration\s+(?P<iteration>\d+)")
_TIMERS = re.compile(r"\s*time \(ms\)(?P<parts>.*)")
#: What `opsctl job run` writes as an attempt begins and ends.
_JOB_TIME = re.compile(r"(?P<what>START TIME|END TIME): (?P<at>\S+) attempt ")
_STAMP = re.compile(r"\s*\[(?P<what>[^\]]+)\] datetime: (?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_LEFT = (
    ("kill-switch", re.compile(r"Detected kill switch at (?P<detail>.+?)(?:\. Exiting|, iteration=\d+\. Exiting|$)")),
    ("exit-interval", re.compile(r"exiting program at iteration\s+(?P<detail>\d+)")),
    ("exit-duration", re.compile(r"exiting program after (?P<detail>[\d.]+) minutes")),
    ("signal", re.compile(r"exiting program after receiving (?P<detail>\w+)")),
    ("stop-request", re.compile(r"Detected stop request(?: at (?P<detail>.+?))?(?:\. Exiting|$)")),
    ("finished", re.compile(r"(?:after training is done|the training is finished, nothing is left to do)(?P<detail>)")),
)
#: The name in the line, spaces folded -> field of Iteration.
_FIELDS = {
    "learning rate": "learning_rate",
    "lm loss": "loss",
    "loss scale": "loss_scale",
    "grad norm": "grad_norm",
    "samples per second": "samples_per_second",
    "TFLOPs": "tflops",
}
_WHOLE_FIELDS = {
    "consumed samples": "consumed_samples",
    "consumed tokens": "consumed_tokens",
    "global batch size": "global_batch_size",
    "number of skipped iterations": "skipped_iterations",
    "number of nan iterations": "nan_iterations",
}


def split_prefix(line: str) -> tuple[int | None, str]:
    """The local rank in front of a launcher's line (`[default3]:`), None without one, and what follows it."""
    match = _PREFIX.match(line)
    if match and match["local_rank"] is not None:
        return int(match["local_rank"]), line[match.end() :]
    return None, line


def parse_line(line: str) -> Record | None:
    """The record in this line, or None. Line ends inside it, where a mail program wrapped it, are taken out."""
    _, text = split_prefix(line.replace("\n", "").rstrip("\r"))
    if match := _JOB_TIME.match(text):
        return _job_time(match)
    if "iteration" in text and (match := _ITERATION.match(text)):
        return _iteration(match)
    if "loss at" in text and (match := _EVALUATION.match(text)):
        return _evaluation(match)
    if "checkpoint" in text and (record := _checkpoint(text)):
        return record
    if "time (ms)" in text and (match := _TIMERS.match(text)):
        return Timers(_numbers(match["parts"]))
    if "PULSE: " in text or "***ALERT: " in text:
        return parse_pulse(text)
    return _stamp_or_left(text)


def parse_lines(lines: Iterable[str]) -> Iterable[Record]:
    """The records among `lines`, in their order."""
    return (record for line in lines if (record := parse_line(line)) is not None)


def iteration_losses(text: str) -> list[tuple[int, float]]:
    """(iteration, loss) of every training line in `text` that has a loss, in the log's order."""
    records = parse_lines(line for line in text.splitlines() if "consumed samples:" in line)
    return [(one.iteration, one.loss) for one in records if isinstance(one, Iteration) and one.loss is not None]


def _iteration(match: re.Match[str]) -> Iteration:
    numbers = _numbers(match["parts"])
    seconds = numbers.pop("elapsed time per iteration (s)", None)
    milliseconds = numbers.pop("elapsed time per iteration (ms)", None)
    if seconds is None and milliseconds is not None:
        seconds = milliseconds / 1000
    known = {field: numbers.pop(name, None) for name, field in _FIELDS.items()}
    whole = {field: _whole(numbers.pop(name, None)) for name, field in _WHOLE_FIELDS.items()}
    return Iteration(
        iteration=int(match["iteration"]),
        total_iterations=int(match["total"]),
        seconds=seconds,
        others=numbers,
        **known,  # type: ignore[arg-type]
        **whole,
    )


def _evaluation(match: re.Match[str]) -> Evaluation | None:
    loss = _number(match["loss"])
    if loss is None:
        return None
    iteration = match["iteration"]
    ppl = _number(match["ppl"]) if match["ppl"] else None
    return Evaluation(match["group"], int(iteration) if iteration else None, loss, ppl)


def _checkpoint(text: str) -> Record | None:
    if match := _SAVED.match(text):
        return CheckpointSaved(int(match["iteration"]), match["folder"].strip())
    if match := _SAVING.match(text):
        return CheckpointSaving(int(match["iteration"]), match["folder"].strip())
    if match := _LOADED.match(text):
        return CheckpointLoaded(int(match["iteration"]), match["folder"].strip())
    if "will not load any checkpoints and will start from random" in text:
        return FreshStart()
    return None


def _stamp_or_left(text: str) -> Record | None:
    stamp = _STAMP.match(text) if "datetime: " in text else None
    at = None
    if stamp:
        try:
            at = datetime.fromisoformat(stamp["at"])
        except ValueError:
            return None
    if stamp or "xiting" in text or "etected" in text:
        for reason, form in _LEFT:
            if match := form.search(stamp["what"] if stamp else text):
                return Left(reason, match["detail"] or "", at)
    return Stamp(stamp["what"], at) if stamp and at else None


def _job_time(match: re.Match[str]) -> Stamp | None:
    try:
        at = datetime.fromisoformat(match["at"])
    except ValueError:
        return None
    # Local time without a zone, as the trainer's stamps have it.
    return Stamp(match["what"], at.astimezone().replace(tzinfo=None) if at.tzinfo else at)


def _numbers(parts: str) -> dict[str, float]:
    """`name: number | name: number |` as a dictionary; parts without a readable number are left out."""
    found: dict[str, float] = {}
    for part in parts.split("|"):
        name, colon, value = part.rpartition(":")
        number = _number(value) if colon else None
        if number is not None:
            found[" ".join(name.split())] = number
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    # NaN and infinity have no whole number.
    return int(value) if value is not None and abs(value) < 2**63 else None
