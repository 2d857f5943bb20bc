"""The line about one logged iteration: letter for letter as Megatron-DeepSpeed prints it, and all variants read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

#: One of these is in every such line: what a search through a log's bytes looks for.
MARKS = (b"consumed samples:",)


class TrainingLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one line says; means and counts are over the iterations since the line before.

    None: this variant of the line does not say, or what it says is not a number.
    """

    iteration: int
    total_iterations: int
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    seconds_per_iteration: float | None = None
    learning_rate: float | None = None  # after the step: the next one runs at it
    global_batch_size: int | None = None
    loss: float | None = None  # None when no iteration had a finite one
    loss_scale: float | None = None  # fp16 only
    grad_norm: float | None = None
    params_norm: float | None = None
    skipped_iterations: int | None = None
    nan_iterations: int | None = None
    samples_per_second: float | None = None
    tflops: float | None = None  # of each rank, as the line itself counts them
    model_tflops: float | None = None  # of each rank, without recomputed activations
    mfu_percent: float | None = None  # what these are of the device's peak
    tokens_per_second_per_gpu: float | None = None
    skipped_on_request: int | None = None  # of the skipped ones; nothing was trained in them
    others: dict[str, float] = {}  # `name: number` parts that only other programs print, by their name

    @property
    def is_left_out(self) -> bool:
        """Whether all its iterations were skipped because somebody asked: it measured nothing."""
        return bool(self.skipped_on_request) and self.seconds_per_iteration is None


class _Part(NamedTuple):
    """One ` name: number |` of the line."""

    name: str
    field: str
    form: str  # how the number is printed


_PARTS = (
    _Part("consumed samples", "consumed_samples", "12d"),
    _Part("consumed tokens", "consumed_tokens", "12d"),
    _Part("elapsed time per iteration (s)", "seconds_per_iteration", ".2f"),
    _Part("learning rate", "learning_rate", ".3E"),
    _Part("global batch size", "global_batch_size", "5d"),
    _Part("lm loss", "loss", ".6E"),
    _Part("loss scale", "loss_scale", ".1f"),
    _Part("grad norm", "grad_norm", ".3f"),
    _Part("params norm", "params_norm", ".3f"),
    _Part("number of skipped iterations", "skipped_iterations", "3d"),
    _Part("number of nan iterations", "nan_iterations", "3d"),
    _Part("samples per second", "samples_per_second", ".3f"),
    _Part("TFLOPs", "tflops", ".2f"),
    _Part("model TFLOPs", "model_tflops", ".2f"),
    _Part("MFU (%)", "mfu_percent", ".2f"),
    _Part("tokens per second per gpu", "tokens_per_second_per_gpu", ".1f"),
    _Part("skipped on request", "skipped_on_request", "3d"),
)
_PART_BY_NAME = {part.name: part for part in _PARTS}
#: What this part was until its unit changed.
_OLDER_ELAPSED = "elapsed time per iteration (ms)"
_HEAD = re.compile(r"iteration\s+(?P<iteration>\d{1,18})\s*/\s*(?P<total>\d{1,18})\s*\|")


def write_training_line(line: TrainingLine) -> str:
    """Without a finite positive loss there is no loss part, as in the original; `nan iterations` then says why."""
    parts = [f" iteration {line.iteration:8d}/{line.total_iterations:8d}"]
    for name, field, form in _PARTS:
        value = getattr(line, field)
        if value is None or (field == "loss" and not (math.isfinite(value) and value > 0.0)):
            continue
        parts.append(f"{name}: {value:{form}}")
    return " | ".join(parts) + " |"


def parse_training_line(text: str) -> TrainingLine | None:
    """The line, ours or an original one, without any rank's prefix; None when it is none."""
    text = text.lstrip() if "iteration" in text else ""
    head = _HEAD.match(text)
    if head is None:
        return None
    known: dict[str, Any] = {}
    others: dict[str, float] = {}
    for name, number in numbers(text[head.end() :]).items():
        if part := _PART_BY_NAME.get(name):
            known[part.field] = _whole(number) if part.form.endswith("d") else number
        elif name == _OLDER_ELAPSED:
            known.setdefault("seconds_per_iteration", number / 1000)
        else:
            others[name] = number
    return TrainingLine(iteration=int(head["iteration"]), total_iterations=int(head["total"]), others=others, **known)


def iterations_in(output: bytes) -> Iterator[int]:
    """The iterations of the training lines in what a node printed, behind whatever prefix they stand."""
    return (int(head["iteration"]) for head in _HEAD.finditer(output.decode(errors="replace")))


def numbers(parts: str) -> dict[str, float]:
    """`name: number | name: number |` as a dictionary; parts without a readable number are left out."""
    found: dict[str, float] = {}
    for part in parts.split("|"):
        name, colon, value = part.rpartition(":")
        number = number_or_none(value) if colon else None
        if number is not None:
            found[" ".join(name.split())] = number
    return found


def number_or_none(text: str) -> float | None:
    """A number as a log prints it; None when it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _whole(value: float) -> int | None:
    # NaN and infinity have no whole number.
    return int(value) if abs(value) < 2**63 else None
