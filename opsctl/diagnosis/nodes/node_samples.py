"""What the nodes' samplers left in an attempt's folder, read from the end and tolerantly."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from opsctl.core.files.state_files import read_last_lines
from trainer.formats.attempt.node_samples import SAMPLES_FILES, TIMINGS_FILES, NodeSample, RankTiming

Line = TypeVar("Line")
#: How much of each node's file is read from its end: hours of samples, a hundred timings of each of eight ranks.
_END_BYTES = 160 << 10


def samples(root: Path, folder: Path) -> tuple[NodeSample, ...]:
    """The newest samples of each node of an attempt, node by node, each node's oldest first; root: the run's output."""
    return tuple(one for lines in _ends(root, folder, SAMPLES_FILES, NodeSample) for one in lines)


def last_samples(root: Path, folder: Path) -> tuple[NodeSample, ...]:
    """The last sample of each node of an attempt: how it was before its end. Empty where none was written."""
    return tuple(lines[-1] for lines in _ends(root, folder, SAMPLES_FILES, NodeSample) if lines)


def rank_timings(root: Path, folder: Path) -> tuple[RankTiming, ...]:
    """The newest timings of each rank of an attempt."""
    return tuple(one for lines in _ends(root, folder, TIMINGS_FILES, RankTiming) for one in lines)


def _ends(root: Path, folder: Path, pattern: str, kind: type[Line]) -> list[list[Line]]:
    """Of each file its newest lines that are a `kind`; of one that cannot be read, none."""
    found = []
    for path in sorted(folder.glob(pattern)):
        try:
            found.append(read_last_lines(root, path, kind, _END_BYTES))
        except OSError:
            continue
    return found
