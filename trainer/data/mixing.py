"""The share of each data set in a mixture, and the resulting sizes. Reads `.idx` files, writes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from trainer.data.indexed import IndexedTokens
from trainer.formats.data.data_inspected import MixedPart, MixedSet
from trainer.formats.data.data_sources import Group, Source
from trainer.formats.errors import DataError
from trainer.recipe.data_options import SPLITS

#: The default shares of the documents for training, validation and test.
USUAL_RANGES = {"train": (0.0, 0.949), "valid": (0.949, 0.999), "test": (0.999, 1.0)}


class GivenRatio(msgspec.Struct, frozen=True):
    """One data set's ratio in a file of ratios, as BigScience's tools write them."""

    dataset_path: str
    ratio: float


@dataclass(frozen=True)
class Asked:
    """A requested mixture.

    ranges: by split, START and END of the documents; a missing split gets none. alpha: None if `ratios`, one per set,
    are the shares. tokens: of the whole training, None if unknown.
    """

    prefixes: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]
    alpha: float | None
    ratios: tuple[float, ...] = ()
    tokens: int | None = None
    sequence_length: int | None = None
    most_epochs: float = 4.0


def parse_range(text: str, split: str) -> tuple[float, float]:
    """Parse `START:END`, shares of the documents. Raises DataError."""
    start_text, colon, end_text = text.partition(":")
    try:
        start, end = float(start_text), float(end_text)
    except ValueError:
        start, end = math.nan, math.nan
    if not colon or not 0 <= start < end <= 1:
        raise DataError(
            f"--{split} {text}: expected START:END with 0 <= START < END <= 1, like {_usual(split)}"
            f"{'' if split == 'train' else ', or none'}"
        )
    return start, end


def read_ratios(path: Path) -> list[GivenRatio]:
    """Read a JSON list of `{"dataset_path": PREFIX, "ratio": R}`. Raises DataError."""
    form = 'expected a JSON list of {"dataset_path": PREFIX, "ratio": R}'
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[GivenRatio])
    except OSError as error:
        raise DataError(f"cannot read the ratios in {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}; {form}") from None
    wrong = next((one for one in found if not 0 < one.ratio < math.inf), None)
    if wrong is not None:
        raise DataError(f"{path}: the ratio {wrong.ratio:g} of {wrong.dataset_path} is not above 0")
    return found


def shares_of(tokens: Sequence[int], alpha: float) -> list[float]:
    """Return tokens^alpha, scaled to add up to 1: with `alpha` 1 proportional to size, with 0 equal.

    Source: multinomial sampling of languages, Conneau and Lample 2019, arXiv 1901.07291, section 3.1.
    """
    return _shares([(count / max(tokens)) ** alpha for count in tokens])


def _shares(sizes: Sequence[float]) -> list[float]:
    """Return the sizes, scaled to add up to 1 without overflow."""
    largest = max(sizes)
    scaled = [size / largest for size in sizes]
    return [one / math.fsum(scaled) for one in scaled]


def mix(asked: Asked) -> list[MixedSet]:
    """Return each data set with its share and parts. Raises DataError if it cannot be mixed."""
    _refuse_wrong(asked)
    opened = [IndexedTokens(prefix) for prefix in asked.prefixes]
    tokens = [data.header.tokens for data in opened]
    _refuse_empty(asked.prefixes, tokens)
    shares = _shares(asked.ratios) if asked.alpha is None else shares_of(tokens, asked.alpha)
    for prefix, share in zip(asked.prefixes, shares, strict=True):
        if share == 0:
            raise DataError(f"{prefix}: its share is too small for a number: leave it out")
    return [_mixed(asked, data, share, sum(tokens)) for data, share in zip(opened, shares, strict=True)]


def groups_of(sets: Sequence[MixedSet], split: str, each: bool = False) -> list[Group]:
    """Return the groups of a split's file: all sets mixed and, with `each`, each set alone."""
    mixed = Group(split, tuple(_source(one, split, one.share) for one in sets))
    if not each:
        return [mixed]
    names = names_of([one.data for one in sets])
    return [
        mixed,
        *(Group(f"{split}_{name}", (_source(one, split, 1.0),)) for name, one in zip(names, sets, strict=True)),
    ]


def names_of(prefixes: Sequence[str]) -> list[str]:
    """Return the name of each set in logs: the fewest last parts of the prefix that are unique."""
    parts = [Path(prefix).parts[1:] for prefix in prefixes]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["-".join(one[-count:]).removesuffix("_text_document").replace(":", "-") for one in parts]
        if len(set(names)) == len(names):
            return names
    raise DataError("the data sets have names that cannot be distinguished: leave --each out, or link one elsewhere")


def _source(one: MixedSet, split: str, weight: float) -> Source:
    part: MixedPart = getattr(one, split)
    return Source(one.data, part.start, part.end, weight)


def _mixed(asked: Asked, data: IndexedTokens, share: float, all_tokens: int) -> MixedSet:
    data.check_every_entry()
    parts = {split: _part(asked, data, split) for split in asked.ranges}
    epochs = None if asked.tokens is None else asked.tokens * share / parts["train"].tokens
    return MixedSet(
        data=data.prefix,
        documents=len(data),
        tokens=data.header.tokens,
        size_share=data.header.tokens / all_tokens,
        share=share,
        epochs=epochs,
        over_limit=epochs is not None and epochs > asked.most_epochs,
        train=parts["train"],
        valid=parts.get("valid"),
        test=parts.get("test"),
    )


def _part(asked: Asked, data: IndexedTokens, split: str) -> MixedPart:
    start, end = asked.ranges[split]
    first, last = Source(data.prefix, start, end, None).documents(len(data))
    tokens = int(data.lengths[first:last].sum(dtype=np.int64))
    needed = (asked.sequence_length or 0) + 1
    if tokens < needed:
        raise DataError(
            f"--{split} {start:g}:{end:g} of {data.prefix} is {last - first:,} of {len(data):,} documents with "
            f"{tokens:,} tokens, one sample needs {needed:,}; give it a larger part or more data, omit the set, or "
            f"{'give shorter sequences' if split == 'train' else f'give --{split} none'}"
        )
    return MixedPart(start=start, end=end, documents=last - first, tokens=tokens)


def _refuse_wrong(asked: Asked) -> None:
    """Raise DataError for errors that are visible without files."""
    if not asked.prefixes:
        raise DataError("no data set to mix: give prefixes of .bin/.idx pairs")
    if asked.alpha is not None and not 0 <= asked.alpha <= 1:
        raise DataError(
            f"--alpha {asked.alpha:g}: 0 (every set alike) to 1 (in proportion to their tokens); larger "
            "values would increase the share of large sets"
        )
    real = [str(Path(prefix).resolve()) for prefix in asked.prefixes]
    twice = next((prefix for prefix, one in zip(asked.prefixes, real, strict=True) if real.count(one) > 1), None)
    if twice is not None:
        raise DataError(f"{twice} is given twice; to increase a set's weight, give ratios (--ratios)")
    for one, other in _overlapping(asked.ranges):
        both = " and ".join(
            f"--{split} {asked.ranges[split][0]:g}:{asked.ranges[split][1]:g}" for split in (one, other)
        )
        raise DataError(f"{both} have documents in common: training must not use evaluation data")


def _overlapping(ranges: Mapping[str, tuple[float, float]]) -> Iterator[tuple[str, str]]:
    given = [split for split in SPLITS if split in ranges]
    for number, one in enumerate(given):
        for other in given[number + 1 :]:
            if max(ranges[one][0], ranges[other][0]) < min(ranges[one][1], ranges[other][1]):
                yield one, other


def _refuse_empty(prefixes: Sequence[str], tokens: Sequence[int]) -> None:
    empty = [prefix for prefix, count in zip(prefixes, tokens, strict=True) if not count]
    if empty:
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise DataError(f"{empty[0]} has no tokens{more}; leave it out of the mixture")


def _usual(split: str) -> str:
    start, end = USUAL_RANGES[split]
    return f"{start:g}:{end:g}"
