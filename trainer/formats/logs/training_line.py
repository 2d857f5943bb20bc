"""The line about one logged iteration: letter for letter as Megatron-DeepSpeed prints it, and all variants read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray


#: One of these is in every such line: what a search through a log's bytes looks for.
MARKS = (b"consumed samples:", b"consumed_samples=")


class TrainingLine(msgspec.Struct, frozen=True, kw_only=True):
    """What one line says; means and counts are over the iterations since the line before.

    None: this variant of the line does not say, or what it says is not a number.
    """

    iteration: int
    total_iterations: int  # 0: the line does not say
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
    logged_at: datetime | None = None  # without a zone; only where a logger put it before the line
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


class _Known(NamedTuple):
    """What a part of the line means."""

    field: str
    factor: float  # to our unit
    is_whole: bool


#: What parts are called where it is not what we call them: before a unit changed, and by Megatron-core and its kin.
_OTHER_NAMES = {
    "elapsed time per iteration (ms)": _Known("seconds_per_iteration", 1e-3, False),
    "elapsed time per iteration ms": _Known("seconds_per_iteration", 1e-3, False),
    "throughput per GPU (TFLOP/s/GPU)": _Known("tflops", 1.0, False),
    "compute per GPU (TFLOP/s/GPU)": _Known("tflops", 1.0, False),
    "[LM]TFLOPs": _Known("tflops", 1.0, False),
    "Tokens per second per GPU (Tok/s/GPU)": _Known("tokens_per_second_per_gpu", 1.0, False),
    "tokens per GPU (tokens/s/GPU)": _Known("tokens_per_second_per_gpu", 1.0, False),
    "tokens per gpu per second tgs": _Known("tokens_per_second_per_gpu", 1.0, False),
}
_KNOWN = {part.name: _Known(part.field, 1.0, part.form.endswith("d")) for part in _PARTS} | _OTHER_NAMES
_HEAD = re.compile(r"iteration(?:\s+|=\s*)(?P<iteration>\d{1,18})\s*/\s*(?P<total>\d{1,18})\s*\|")


def write_training_line(line: TrainingLine) -> str:
    """Without a finite positive loss there is no loss part, as in the original; `nan iterations` then says why."""
    parts = [f" iteration {line.iteration:8d}/{line.total_iterations:8d}"]
    for name, field, form in _PARTS:
        value = getattr(line, field)
        if value is None or (field == "loss" and not (math.isfinite(value) and value > 0.0)):
            continue
        parts.append(f"{name}: {value:{form}}")
    return " | ".join(parts) + " |"


def parse_training_line(text: str, logged_at: datetime | None = None) -> TrainingLine | None:
    """The line, ours or another program's, without any rank's or logger's prefix; None when it is none.

    A part that no `|` closes is left out: it was cut short, or is being written, and its number may go on.
    """
    text = text.lstrip() if "iteration" in text else ""
    head = _HEAD.match(text)
    if head is None:
        return None
    fields: dict[str, Any] = {}
    others: dict[str, float] = {}
    for name, number in numbers(text[head.end() : text.rindex("|") + 1]).items():
        known = _KNOWN.get(name) or _KNOWN.get(name.replace("_", " "))
        if known is None:
            others[name] = number
        elif known.factor == 1.0:
            fields[known.field] = _whole(number) if known.is_whole else number
        else:
            fields.setdefault(known.field, number * known.factor)
    return TrainingLine(
        iteration=int(head["iteration"]),
        total_iterations=int(head["total"]),
        logged_at=logged_at,
        others=others,
        **fields,
    )


class Layout:
    """How a log's lines look, taken from one of them: reads lines that look the same several times faster."""

    def __init__(self, example: str) -> None:
        """`example` as `parse_training_line` takes it."""
        head = _HEAD.match(example.lstrip())
        names = numbers(example.lstrip()[head.end() :]) if head else {}
        known = [(name, _KNOWN.get(name) or _KNOWN.get(name.replace("_", " "))) for name in names]
        self._others = [(at, name) for at, (name, one) in enumerate(known) if one is None]
        self._fields = [(at, one.field) for at, (_, one) in enumerate(known) if one is not None]
        self._numbers = [_converter(one) for _, one in known]
        parts = [f" *{_flexible(name)} ?[:=] *({_whole_or_not(one)}) *\\|" for name, one in known]
        has_all = head is not None and example.count("|") == len(names) + 1
        # A line with the same name twice, or a part without a number, has no layout: it is read part by part.
        self._pattern = re.compile(f"{_HEAD.pattern}{''.join(parts)} *") if has_all else None

    def read(self, text: str, logged_at: datetime | None = None) -> TrainingLine | None:
        """What `parse_training_line` says of a line that looks the same; None for any other."""
        match = self._pattern.fullmatch(text.strip()) if self._pattern else None
        if match is None:
            return None
        iteration, total, *values = match.groups()
        try:
            found = [number(value) for number, value in zip(self._numbers, values, strict=True)]
        except ValueError:
            return None
        return TrainingLine(
            iteration=int(iteration),
            total_iterations=int(total),
            logged_at=logged_at,
            others={name: found[at] for at, name in self._others},
            **{field: found[at] for at, field in self._fields},  # type: ignore[arg-type]
        )


def iterations_in(output: bytes) -> Iterator[int]:
    """The iterations of the training lines in what a node printed, behind whatever prefix they stand."""
    return (int(head["iteration"]) for head in _HEAD.finditer(output.decode(errors="replace")))


def numbers(parts: str) -> dict[str, float]:
    """`name: number | name=number |` as a dictionary; parts without a readable number are left out."""
    found: dict[str, float] = {}
    for part in parts.split("|"):
        name, sign, value = part.rpartition(":")
        if not sign:
            name, sign, value = part.rpartition("=")
        number = number_or_none(value) if sign else None
        if number is not None:
            found[" ".join(name.split())] = number
    return found


def number_or_none(text: str) -> float | None:
    """A number as a log prints it; None when it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _converter(known: _Known | None) -> Callable[[str], float | int]:
    if known is None or (known.factor == 1.0 and not known.is_whole):
        return float
    if known.is_whole:
        return int
    factor = known.factor
    return lambda text: float(text) * factor


def _flexible(name: str) -> str:
    """The name in a pattern, with any number of blanks where it has one."""
    return r"\s+".join(map(re.escape, name.split()))


def _whole_or_not(known: _Known | None) -> str:
    return r"\d{1,18}" if known is not None and known.is_whole else r"[-+\d.eE]{1,30}"


def _whole(value: float) -> int | None:
    # NaN and infinity have no whole number.
    return int(value) if abs(value) < 2**63 else None


# So many tokens at each end are printed; the digest is of all.
_ENDS = 3


def tokens_line(iteration: int, place: int, tokens: NDArray[int64]) -> str:
    """`tokens of iteration 2, sample 8: 1858 3851 29889 ... 500 13 13 (17 tokens, xxh64 0f3a...)`.

    place: of the sample in the training's order, from 0. tokens: int64, [sequence + 1].
    """
    import xxhash

    digest = xxhash.xxh64(tokens.astype("<i8").tobytes()).hexdigest()
    ids = [*map(str, tokens.tolist())]
    shown = ids if len(ids) <= 2 * _ENDS else [*ids[:_ENDS], "...", *ids[-_ENDS:]]
    return f"tokens of iteration {iteration}, sample {place}: {' '.join(shown)} ({len(ids)} tokens, xxh64 {digest})"
