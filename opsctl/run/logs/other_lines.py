"""What other programs' logs say: torchtitan's lines, the list of arguments at a start, skipped ranges. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from opsctl.run.logs.records import SaveEnded, Setting, SkippedRange
from trainer.formats.logs.leave_lines import Left, Reason
from trainer.formats.logs.log_lines import CLOCK, CheckpointLoaded, Evaluation, Stamp, parse_clock
from trainer.formats.logs.training_line import TrainingLine, number_or_none

#: One of these is in every line here that says something: what a search through a log's bytes looks for.
MARKS = (b" - INFO - ", b" ...", b"Skipped iterations ")

_COLOUR = re.compile(r"\x1b\[[\d;]{0,20}m")
_TITAN = re.compile(rf"\s*(?:\[titan\] )?(?P<at>{CLOCK}),(?P<fraction>\d{{1,9}}) - \S+ - INFO - (?P<said>.*)")
_STEP = re.compile(r"(?P<validate>validate )?step:\s*(?P<step>\d{1,18})\s+loss:")
_PART = re.compile(r"(?P<name>[a-z_]+):\s*(?P<number>-?[\d.,]+(?:e[-+]?\d+)?|nan|inf)")
_FROM = re.compile(r"Loading the checkpoint from (?P<folder>.+?step-(?P<step>\d{1,18}))")
_STARTS = re.compile(r"Training starts at step (?P<step>\d{1,18})")
_TRAINER = {
    "global_batch_size": re.compile(r"global batch size (\d{1,18})"),
    "sequence_length": re.compile(r"sequence length (\d{1,18})"),
    "total_iterations": re.compile(r"total steps (\d{1,18})"),
}
#: torchtitan's names of what a training line has.
_TITAN_FIELDS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "tflops": "tflops",
    "mfu": "mfu_percent",
    "tps": "tokens_per_second_per_gpu",
}
_ARGUMENT = re.compile(r"\s*(?P<name>[a-z][a-z_-]{2,60}) \.{3,64} (?P<value>\d{1,18})\s*")
_ARGUMENTS = {
    "seq_length": "sequence_length",
    "world_size": "world_size",
    "global_batch_size": "global_batch_size",
    "train_iters": "total_iterations",
}
_SKIPPED = re.compile(r"\s*Skipped iterations (?P<first>\d{1,18}) to (?P<last>\d{1,18}) due to ")

TitanRecord = TrainingLine | Evaluation | CheckpointLoaded | Setting | SaveEnded | Stamp | Left


def parse_titan_line(text: str) -> TitanRecord | None:
    """What a line of torchtitan's says, with or without its colours, else None.

    It names neither samples nor how long a step took: `opsctl.run.logs.reader` adds what the lines before it say.
    """
    match = _TITAN.match(_COLOUR.sub("", text)) if " - INFO - " in text else None
    at = parse_clock(match["at"], None) if match else None
    if match is None or at is None:
        return None
    # Steps may take less than a second.
    at += timedelta(microseconds=int(match["fraction"][:6].ljust(6, "0")))
    said = match["said"]
    return _step(said, at) or _milestone(said, at)


def parse_setting(text: str) -> Setting | None:
    """What a line of the list of arguments says that matters here, else None."""
    match = _ARGUMENT.fullmatch(text) if " ..." in text else None
    field = _ARGUMENTS.get(match["name"].replace("-", "_")) if match else None
    return Setting(**{field: int(match["value"])}) if match and field else None


def parse_skipped(text: str) -> SkippedRange | None:
    """The range that a line says was left out, else None."""
    match = _SKIPPED.match(text) if "Skipped iterations " in text else None
    return SkippedRange(int(match["first"]), int(match["last"])) if match else None


def _step(said: str, at: datetime) -> TrainingLine | Evaluation | None:
    head = _STEP.match(said)
    if head is None:
        return None
    values = {part["name"]: number_or_none(part["number"].replace(",", "")) for part in _PART.finditer(said)}
    if head["validate"]:
        loss = values.get("loss")
        return None if loss is None else Evaluation("validation", int(head["step"]), loss, None)
    fields = {field: values.get(name) for name, field in _TITAN_FIELDS.items()}
    return TrainingLine(iteration=int(head["step"]), total_iterations=0, logged_at=at, **fields)  # type: ignore[arg-type]


def _milestone(said: str, at: datetime) -> CheckpointLoaded | Setting | SaveEnded | Stamp | Left | None:
    if match := _FROM.match(said):
        return CheckpointLoaded(int(match["step"]), match["folder"])
    if said.startswith("Finished saving the checkpoint"):
        return SaveEnded()
    if said.startswith("Training completed"):
        return Left(Reason.FINISHED, "", at)
    found = {field: int(match[1]) for field, pattern in _TRAINER.items() if (match := pattern.search(said))}
    if match := _STARTS.match(said):
        return Setting(starts_at=int(match["step"]), **found)
    return Setting(**found) if "sequence_length" in found else None
