"""Evidence against nodes: its kinds and weights, its file, and the samples that nodes write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from opsctl.core.files.state_files import append_state, make_folder, read_last_lines, read_lines
from opsctl.run.attempts.verdict import Cause
from opsctl.run.config.paths import RunPaths
from trainer.formats.attempt.node_samples import SAMPLES_FILES, TIMINGS_FILES, NodeSample, RankTiming
from trainer.formats.json_text import Moment

#: Kinds of evidence by `opsctl probe`, `watch` and samples; every other kind is a Cause.
PROBE, SLOW, SAMPLE = "probe", "slow", "sample"


@dataclass(frozen=True)
class Weight:
    """The weight of one kind of evidence with a confidence of 1, and the time until half of it is left."""

    weight: float
    half_life: timedelta
    is_hardware: bool = False  # one line with enough confidence excludes the node at once


_DAY = timedelta(days=1)
#: Kinds that count against a node. All other kinds count 0: they are the fault of a user, a run or no one, or belong
#: to a newer release.
WEIGHTS: dict[str, Weight] = {
    Cause.GPU_ECC: Weight(1.0, 14 * _DAY, is_hardware=True),
    Cause.GPU_LOST: Weight(1.0, 14 * _DAY, is_hardware=True),
    Cause.GPU_ERROR: Weight(0.8, 7 * _DAY, is_hardware=True),
    Cause.NODE_FAILURE: Weight(1.0, 7 * _DAY, is_hardware=True),
    PROBE: Weight(1.0, 3 * _DAY, is_hardware=True),
    SLOW: Weight(0.6, 3 * _DAY),
    Cause.NETWORK: Weight(0.5, 2 * _DAY),
    Cause.NCCL: Weight(0.4, 2 * _DAY),
    Cause.HANG: Weight(0.3, 2 * _DAY),
    Cause.SHM: Weight(0.3, _DAY),
    Cause.HOST_OOM: Weight(0.3, _DAY),
    SAMPLE: Weight(0.3, _DAY),
}
#: Kinds that a program, a user or another node can cause as well: alone they exclude no node.
AMBIGUOUS = frozenset({Cause.NCCL, Cause.HANG, Cause.SHM, Cause.HOST_OOM, SAMPLE})


@dataclass(frozen=True)
class Policy:
    """The parameters for judging a list."""

    most_excluded_percent: float = 10.0  # of the partition's nodes, including exclusions by persons
    needed: int = 1  # nodes that the run needs
    least_score: float = 1.0  # score that excludes a node
    sure: float = 0.8  # confidence from which on one line about hardware is enough
    bad_ends: int = 2  # bad endings in a row that hardware of the same node caused
    bad_ends_within: timedelta = 14 * _DAY
    first: timedelta = 2 * _DAY  # length of a node's first exclusion; each further one is twice as long
    longest: timedelta = 32 * _DAY
    remembered: timedelta = 90 * _DAY  # time during which an earlier exclusion makes the next one longer

    def length(self, times: int) -> timedelta:
        """Return the length of a node's exclusion number `times`, from 1."""
        return min(self.first * (1 << min(max(times, 1) - 1, 10)), self.longest)


#: Evidence dated further ahead is ignored: no clock is that wrong, and it would never expire.
AHEAD = _DAY
#: The default length of a person's exclusion.
PERSONS = 30 * _DAY


class NodeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One line of evidence against a node."""

    node: Annotated[str, Meta(description="Its name.")]
    kind: Annotated[str, Meta(description="A cause of a failure (`gpu-ecc`), or `slow`, `probe`, `sample`.")]
    at: Annotated[Moment, Meta(description="Time of the observation.")]
    words: Annotated[str, Meta(description="The observation in a sentence, with its numbers.")]
    confidence: Annotated[float, Meta(description="Confidence that the node is to blame, 0 to 1.")]
    attempt: Annotated[str, Meta(description="Id of the attempt; empty outside of one.")] = ""
    by: Annotated[str, Meta(description="`triage`, `probe`, `watch`, or an account's name.")] = ""


def append_node_evidence(paths: RunPaths, evidence: NodeEvidence) -> None:
    """Add a line. Raises OSError."""
    make_folder(paths.output, paths.state)
    append_state(paths.output, paths.node_evidence, evidence)


def read_node_evidence(paths: RunPaths) -> list[NodeEvidence]:
    """Return all readable lines in the order of writing."""
    return read_lines(paths.output, paths.node_evidence, NodeEvidence)


#: The confidence that a slow node is to blame rises from _LEAST to _MOST at this ratio to the other nodes.
_SURE_RATIO, _LEAST, _MOST = 1.5, 0.5, 0.95
#: Healthy nodes differ by less for good: such evidence would add up with each attempt and exclude them.
_LEAST_RATIO = 1.05


def slow_evidence(
    node: str, ratio: float, words: str, attempt: str, at: datetime, known: Iterable[NodeEvidence]
) -> NodeEvidence | None:
    """Return a line about a slow node; None if it is hardly slow, or if `known` has a line about this attempt."""
    if ratio < _LEAST_RATIO or any(one.node == node and one.kind == SLOW and one.attempt == attempt for one in known):
        return None
    confidence = _LEAST + (_MOST - _LEAST) * min(1.0, max(0.0, (ratio - 1.0) / (_SURE_RATIO - 1.0)))
    return NodeEvidence(
        node=node, kind=SLOW, at=at, words=words, confidence=round(confidence, 2), attempt=attempt, by="watch"
    )


Line = TypeVar("Line")
#: Bytes read from the end of each node's file: hours of samples, a hundred timings of each of eight ranks.
_END_BYTES = 160 << 10


def samples(root: Path, folder: Path) -> tuple[NodeSample, ...]:
    """Return the newest samples of an attempt, by node, the oldest first. root: the run's output."""
    return tuple(one for lines in _ends(root, folder, SAMPLES_FILES, NodeSample) for one in lines)


def last_samples(root: Path, folder: Path) -> tuple[NodeSample, ...]:
    """Return the last sample of each node of an attempt: its state before the end."""
    return tuple(lines[-1] for lines in _ends(root, folder, SAMPLES_FILES, NodeSample) if lines)


def rank_timings(root: Path, folder: Path) -> tuple[RankTiming, ...]:
    """Return the newest timings of each rank of an attempt."""
    return tuple(one for lines in _ends(root, folder, TIMINGS_FILES, RankTiming) for one in lines)


def _ends(root: Path, folder: Path, pattern: str, kind: type[Line]) -> list[list[Line]]:
    """Return the newest lines of each file; none of a file that cannot be read."""
    found = []
    for path in sorted(folder.glob(pattern)):
        try:
            found.append(read_last_lines(root, path, kind, _END_BYTES))
        except OSError:
            continue
    return found
