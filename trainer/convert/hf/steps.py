"""Which checkpoints are meant, found and looked over before anything is done with the first."""

from __future__ import annotations

import re
from pathlib import Path

from trainer.formats.checkpoint.manifest import (
    Found,
    checkpoint_folders,
    fault_of,
    iteration_of,
    latest_checkpoint,
    read_manifest,
    tag_of,
)
from trainer.formats.errors import CheckpointError

_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18})")
#: So many are named where many are missing or there.
_NAMED = 5


def steps_range(text: str) -> range:
    """`A:B:C`, from A to B, both among them, every C. Raises ValueError, one line."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"--steps {text!a}: give FIRST:LAST:EVERY, e.g. 1000:9000:1000")
    first, last, every = map(int, match.groups())
    if first > last:
        raise ValueError(f"--steps {text}: {first} comes after {last}: give {last}:{first}:{every}")
    if every == 0:
        raise ValueError(f"--steps {text}: every 0 is none: give 1 at least")
    return range(first, last + 1, every)


def found_latest(root: Path) -> Found:
    """The latest checkpoint. Raises CheckpointError where there is none."""
    found = latest_checkpoint(root)
    if found is None:
        raise CheckpointError(f"{root} has no checkpoints")
    return found


def found_steps(root: Path, wanted: range) -> list[Found]:
    """The checkpoints of these iterations, complete by their sizes, in order.

    Raises CheckpointError for one that is missing or not complete. A range may be long: what it names is never listed.
    """
    there = sorted(number for one in checkpoint_folders(root) if (number := iteration_of(one.name)) is not None)
    meant = [number for number in there if number in wanted]
    if len(meant) < len(wanted):
        has = set(meant)
        first = next(number for number in wanted if number not in has)
        more = len(wanted) - len(meant) - 1
        others = f" and {more} more of the range are" if more else " is"
        raise CheckpointError(f"{tag_of(first)}{others} not in {root}: there {_listed(there)}")
    for number in meant:
        if fault := fault_of(root / tag_of(number)):
            raise CheckpointError(f"{tag_of(number)} is not complete: {fault}")
    return [Found(root / tag_of(number), read_manifest(root / tag_of(number))) for number in meant]


def _listed(there: list[int]) -> str:
    if not there:
        return "are no checkpoints"
    if len(there) <= 2 * _NAMED:
        return f"{'is' if len(there) == 1 else 'are'} {', '.join(map(str, there))}"
    ends = (*map(str, there[:_NAMED]), "...", *map(str, there[-_NAMED:]))
    return f"are {', '.join(ends)} ({len(there)})"
