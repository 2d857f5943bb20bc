"""Parse torchtitan's lines: each alone, or many that look alike at once. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from opsctl.run.logs.records import SaveEnded, Setting
from trainer.formats.logs.guard_lines import Left, Reason
from trainer.formats.logs.log_lines import CLOCK, CheckpointLoaded, Evaluation, Stamp, parse_moment
from trainer.formats.logs.training_line import AlikeLines, Layout, TrainingLine, number_or_none

#: Every line that this module parses has it; used for searching a log's bytes.
MARK = b" - INFO - "

_COLOURS = r"(?:\x1b\[[\d;]{0,20}m)+"
_COLOUR = re.compile(_COLOURS)
_STAMP = rf"{CLOCK},\d{{1,9}}"
_LINE = re.compile(rf"\s*(?:\[titan\] )?(?P<at>{_STAMP}) - \S+ - INFO - (?P<message>.*)")
_STEP = re.compile(r"(?P<validate>validate )?step:\s*(?P<step>\d{1,18})\s+loss:")
_PART = re.compile(r"(?P<name>[a-z_]+):\s*(?P<number>-?[\d.,]+(?:e[-+]?\d+)?|nan|inf)")
_FROM = re.compile(r"Loading the checkpoint from (?P<folder>.+?step-(?P<step>\d{1,18}))")
_STARTS = re.compile(r"Training starts at step (?P<step>\d{1,18})")
_TRAINER = {
    "global_batch_size": re.compile(r"global batch size (\d{1,18})"),
    "sequence_length": re.compile(r"sequence length (\d{1,18})"),
    "total_iterations": re.compile(r"total steps (\d{1,18})"),
}
#: The names of the fields of a training line.
_FIELDS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "tflops": "tflops",
    "mfu": "mfu_percent",
    "lr": "learning_rate",
    "tps": "tokens_per_second_per_gpu",
}

TitanRecord = TrainingLine | Evaluation | CheckpointLoaded | Setting | SaveEnded | Stamp | Left


def parse_titan_line(text: str) -> TitanRecord | None:
    """Parse a line with or without colours; None for others. `reader` adds missing fields."""
    match = _LINE.match(_COLOUR.sub("", text)) if MARK.decode() in text else None
    at = _time(match["at"]) if match else None
    if match is None or at is None:
        return None
    return _step(match["message"], at) or _milestone(match["message"], at)


def _time(stamp: str) -> datetime | None:
    """Return the time of `2025-10-30 14:32:58,897`, for steps that take less than a second; None if invalid."""
    return parse_moment(f"{stamp[:19]}.{stamp[20:26]:0<6}")


def _step(message: str, at: datetime) -> TrainingLine | Evaluation | None:
    head = _STEP.match(message)
    if head is None:
        return None
    values = {part["name"]: number_or_none(part["number"].replace(",", "")) for part in _PART.finditer(message)}
    if head["validate"]:
        loss = values.get("loss")
        return None if loss is None else Evaluation("validation", int(head["step"]), loss, None)
    fields = {field: values.get(name) for name, field in _FIELDS.items()}
    return TrainingLine(iteration=int(head["step"]), total_iterations=0, logged_at=at, **fields)  # type: ignore[arg-type]


def _milestone(message: str, at: datetime) -> CheckpointLoaded | Setting | SaveEnded | Stamp | Left | None:
    if match := _FROM.match(message):
        return CheckpointLoaded(int(match["step"]), match["folder"])
    if message.startswith("Finished saving the checkpoint"):
        return SaveEnded()
    if message.startswith("Training completed"):
        return Left(Reason.FINISHED, "", at)
    found = {field: int(match[1]) for field, pattern in _TRAINER.items() if (match := pattern.search(message))}
    if match := _STARTS.match(message):
        return Setting(starts_at=int(match["step"]), **found)
    return Setting(**found) if "sequence_length" in found else None


#: The parts of a step's line, for its layout: of any other character itself.
_PIECE = re.compile(
    rf"(?P<stamp>{_STAMP})|(?P<colours>{_COLOURS})|(?P<part>{_PART.pattern})|(?P<digits>[\d.,]+)|(?P<blanks>\s+)|.",
    re.DOTALL,
)
_PIECES = {"colours": _COLOURS, "digits": r"[\d.,]+", "blanks": r"[ \t]+"}
_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf"


def titan_layout(prefix: str, example: str) -> Layout:
    """Return the layout of steps like `example`, after the same `prefix`, which names the rank."""
    fields: list[str] = []

    def pattern_of(piece: re.Match[str]) -> str:
        if piece["stamp"]:
            fields.append("logged_at")
            return f"({_STAMP})"
        if piece["part"] is None:
            return next((form for kind, form in _PIECES.items() if piece[kind]), re.escape(piece[0]))
        field = "iteration" if piece["name"] == "step" else _FIELDS.get(piece["name"])
        if field is None:
            return rf"{piece['name']}: *(?:{_NUMBER})"
        fields.append(field)
        return rf"{piece['name']}: *({_NUMBER})"

    pattern = re.escape(prefix) + "".join(map(pattern_of, _PIECE.finditer(example.rstrip())))
    readers: dict[str, Callable[[bytes], Any]] = {"logged_at": lambda text: _time(text.decode()), "iteration": int}

    def columns_of(rows: list[tuple[bytes, ...]]) -> AlikeLines:
        columns: dict[str, list[Any]] = {"total_iterations": [0] * len(rows)}
        for field, texts in zip(fields, zip(*rows, strict=True), strict=True):
            columns[field] = [*map(readers.get(field, _number), texts)]
        return AlikeLines(columns=columns)

    return Layout(re.compile(rf"{pattern}[ \t]*\r?\n".encode()), columns_of)


def _number(text: bytes) -> float:
    return float(text.replace(b",", b""))
