"""The line of one logged iteration, written exactly as Megatron-DeepSpeed prints it; all variants are read."""

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


#: Every such line contains one of these, for searches in a log's bytes. A program of unknown batch counts no samples.
MARKS = (b"consumed samples:", b"consumed_samples=", b"elapsed time per iteration", b"lm loss:")


class TrainingLine(msgspec.Struct, frozen=True, kw_only=True):
    """The values of one line. Means and counts are over the iterations since the previous line.

    None: this variant has no such value, or it is not a number.
    """

    iteration: int
    total_iterations: int  # 0: the line has no total
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    seconds_per_iteration: float | None = None
    learning_rate: float | None = None  # after the step: of the next iteration
    global_batch_size: int | None = None
    loss: float | None = None  # None if no iteration had a finite one
    loss_scale: float | None = None  # fp16 only
    grad_norm: float | None = None
    params_norm: float | None = None
    skipped_iterations: int | None = None
    nan_iterations: int | None = None
    samples_per_second: float | None = None
    tflops: float | None = None  # of each rank, as the line itself computes them
    model_tflops: float | None = None  # of each rank, without recomputed activations
    mfu_percent: float | None = None  # share of the device's peak
    tokens_per_second_per_gpu: float | None = None
    skipped_on_request: int | None = None  # the part of `skipped` that was requested; nothing was trained in them
    logged_at: datetime | None = None  # without a zone; only if a logger put it before the line
    others: dict[str, float] = {}  # `name: number` parts of other programs, by name

    @property
    def is_left_out(self) -> bool:
        """True if all its iterations were skipped on request, so that it measured nothing."""
        return bool(self.skipped_on_request) and self.seconds_per_iteration is None


class _Part(NamedTuple):
    """One ` name: number |` of the line."""

    name: str
    field: str
    form: str  # the number's format


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
    """The meaning of a part of the line."""

    field: str
    factor: float  # to our unit
    is_whole: bool


#: Other names of parts: those from before a unit changed, and those of Megatron-core and its forks.
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
#: The same in a log's bytes, of which a line must not go on in the next; a line of an unknown total is read alone.
_ALIKE_HEAD = r" *iteration(?:[ \t]+|=[ \t]*)(\d{1,18})[ \t]*/[ \t]*([1-9]\d{0,17})[ \t]*\|"
_HEAD = re.compile(r"iteration(?:\s+|=\s*)(?P<iteration>\d{1,18})\s*/\s*(?P<total>\d{1,18})\s*\|")


def write_training_line(line: TrainingLine) -> str:
    """Return the line. Without a finite positive loss it has no loss part, as in the original: see `nan iterations`."""
    parts = [f" iteration {line.iteration:8d}/{line.total_iterations:8d}"]
    for name, field, form in _PARTS:
        value = getattr(line, field)
        if value is None or (field == "loss" and not (math.isfinite(value) and value > 0.0)):
            continue
        parts.append(f"{name}: {value:{form}}")
    return " | ".join(parts) + " |"


def parse_training_line(text: str, logged_at: datetime | None = None) -> TrainingLine | None:
    """Parse a line, ours or another program's, without a rank's or logger's prefix; None if it is another line.

    A part without its closing `|` is ignored: it was truncated, or is still being written.
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


class AlikeLines(msgspec.Struct, frozen=True, kw_only=True):
    """Training lines of one layout, in order, as one column per field; None is unknown."""

    columns: dict[str, list[Any]]  # by the field of `TrainingLine`
    others: dict[str, list[float]] = {}

    def __len__(self) -> int:
        return len(self.columns["iteration"])

    def lines(self) -> Iterator[TrainingLine]:
        """Yield each line by itself."""
        names, others = [*self.columns], [*self.others]
        other_rows = zip(*self.others.values(), strict=True)
        for row in zip(*self.columns.values(), strict=True):
            yield TrainingLine(
                others=dict(zip(others, next(other_rows), strict=True)) if others else {},
                **dict(zip(names, row, strict=True)),
            )

    def from_second(self) -> AlikeLines:
        """Return all lines but the first."""
        others = {name: column[1:] for name, column in self.others.items()}
        return AlikeLines(columns={name: column[1:] for name, column in self.columns.items()}, others=others)


class Layout(NamedTuple):
    """The parts of a log's training lines, taken from an example: reads such lines several times faster."""

    pattern: re.Pattern[bytes]  # of a whole line with its end
    columns: Callable[[list[tuple[bytes, ...]]], AlikeLines]  # from the groups of each line

    def read(
        self, data: bytes, start: int, skip: Callable[[bytes, int], int] | None = None
    ) -> tuple[AlikeLines | None, int]:
        """Read the lines of this layout from `start`, and return them with the position after them.

        skip: a position after a line -> the next one that may not be left out, for lines of no interest in between.
        """
        match_at, rows = self.pattern.match, []
        match = match_at(data, start)
        while match:
            rows.append(match.groups())
            start = match.end()
            match = match_at(data, start)
            if match is None and skip is not None:
                start = skip(data, start)
                match = match_at(data, start)
        return (self.columns(rows) if rows else None), start


def layout_like(
    example: str, prefix: str = "", stamp: Callable[[bytes], datetime | None] | None = None
) -> Layout | None:
    """Return the layout of lines like `example`, which has no prefix; None if each has to be read part by part.

    prefix: the pattern of what may precede a line; `stamp` reads its group `at`, where a logger wrote the time.
    """
    head = _HEAD.match(example.lstrip())
    names = numbers(example.lstrip()[head.end() :]) if head else {}
    known = [(name, _KNOWN.get(name) or _KNOWN.get(name.replace("_", " "))) for name in names]
    fields = [one.field for _, one in known if one is not None]
    # A line with the same name twice, or a part without a number, has no layout.
    if head is None or example.count("|") != len(names) + 1 or len(set(fields)) != len(fields):
        return None
    parts = [f" *{_flexible(name)} ?[:=] *({_whole_or_not(one)}) *\\|" for name, one in known]

    def columns_of(rows: list[tuple[bytes, ...]]) -> AlikeLines:
        found = [*zip(*rows, strict=True)]
        columns: dict[str, list[Any]] = {}
        others: dict[str, list[float]] = {}
        if stamp is not None:
            columns["logged_at"] = [*map(stamp, found.pop(0))]
        columns |= {"iteration": [*map(int, found[0])], "total_iterations": [*map(int, found[1])]}
        for (name, one), texts in zip(known, found[2:], strict=True):
            if one is None:
                others[name] = [*map(float, texts)]
            elif one.factor == 1.0:
                columns[one.field] = [*map(int if one.is_whole else float, texts)]
            else:
                columns[one.field] = [float(text) * one.factor for text in texts]
        return AlikeLines(columns=columns, others=others)

    return Layout(re.compile(f"{prefix}{_ALIKE_HEAD}{''.join(parts)} *\\r?\\n".encode()), columns_of)


def iterations_in(output: bytes) -> Iterator[int]:
    """Yield the iterations of the training lines in a node's output, after any prefix."""
    return (int(head["iteration"]) for head in _HEAD.finditer(output.decode(errors="replace")))


def numbers(parts: str) -> dict[str, float]:
    """Return `name: number | name=number |` as a dictionary, without parts that have no valid number."""
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
    """Parse a number as a log prints it; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None


def _flexible(name: str) -> str:
    """Return a pattern of the name with any number of blanks in place of each."""
    return r"[ \t]+".join(map(re.escape, name.split()))


def _whole_or_not(known: _Known | None) -> str:
    return r"\d{1,18}" if known is not None and known.is_whole else r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)"


def _whole(value: float) -> int | None:
    # NaN and infinity cannot be converted to integers.
    return int(value) if abs(value) < 2**63 else None


# Number of tokens printed at each end. The digest is of all.
_ENDS = 3


def tokens_line(iteration: int, place: int, tokens: NDArray[int64]) -> str:
    """Return `tokens of iteration 2, sample 8: 1858 3851 29889 ... 500 13 13 (17 tokens, xxh64 0f3a...)`.

    place: of the sample in the training's order, from 0. tokens: int64, [sequence + 1].
    """
    import xxhash

    digest = xxhash.xxh64(tokens.astype("<i8").tobytes()).hexdigest()
    ids = [*map(str, tokens.tolist())]
    shown = ids if len(ids) <= 2 * _ENDS else [*ids[:_ENDS], "...", *ids[-_ENDS:]]
    return f"tokens of iteration {iteration}, sample {place}: {' '.join(shown)} ({len(ids)} tokens, xxh64 {digest})"
