"""What was seen of nodes: evidence against them, its weight, and the samples that nodes leave."""

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

#: What `opsctl probe`, `watch` and samples call what they saw; every other kind of evidence is a Cause.
PROBE, SLOW, SAMPLE = "probe", "slow", "sample"


@dataclass(frozen=True)
class Weight:
    """How one kind of evidence counts: with a confidence of 1, and when half of that is forgotten."""

    weight: float
    half_life: timedelta
    is_hardware: bool = False  # one that is sure enough excludes at once


_DAY = timedelta(days=1)
#: Kinds that speak against a node. All others are a user's, a run's or nobody's fault, or of a release that this one
#: does not know: they count nothing.
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
#: Kinds that a program, a user or another node can be the reason of as well: alone they exclude no node.
AMBIGUOUS = frozenset({Cause.NCCL, Cause.HANG, Cause.SHM, Cause.HOST_OOM, SAMPLE})


@dataclass(frozen=True)
class Policy:
    """By what a list is judged."""

    most_excluded_percent: float = 10.0  # of the partition's nodes, persons' own exclusions counted in
    needed: int = 1  # nodes that the run cannot do without
    least_score: float = 1.0  # from which on a node is excluded
    sure: float = 0.8  # confidence from which on one word about hardware is enough
    bad_ends: int = 2  # in a row, by the hardware of the same node
    bad_ends_within: timedelta = 14 * _DAY
    first: timedelta = 2 * _DAY  # the first exclusion of a node; each next one is twice as long
    longest: timedelta = 32 * _DAY
    remembered: timedelta = 90 * _DAY  # for so long an exclusion that is over makes the next one longer

    def length(self, times: int) -> timedelta:
        """How long an exclusion lasts that is a node's `times`-th, from 1."""
        return min(self.first * (1 << min(max(times, 1) - 1, 10)), self.longest)


#: What is dated later than this from now is passed over: no clock is that far ahead, and it would never be forgiven.
AHEAD = _DAY
#: How long a person's exclusion lasts that says no end.
PERSONS = 30 * _DAY


class NodeEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was seen of a node."""

    node: Annotated[str, Meta(description="Its name.")]
    kind: Annotated[str, Meta(description="A cause of a bad end (`gpu-ecc`), or `slow`, `probe`, `sample`.")]
    at: Annotated[Moment, Meta(description="When it was seen.")]
    words: Annotated[str, Meta(description="What was seen, in a sentence with its numbers.")]
    confidence: Annotated[float, Meta(description="From 0 to 1: how sure it is that the node is to blame.")]
    attempt: Annotated[str, Meta(description="Id of the attempt in which; empty outside of one.")] = ""
    by: Annotated[str, Meta(description="`triage`, `probe`, `watch`, or an account's name.")] = ""


def append_node_evidence(paths: RunPaths, evidence: NodeEvidence) -> None:
    """Add a line. Raises OSError."""
    make_folder(paths.output, paths.state)
    append_state(paths.output, paths.node_evidence, evidence)


def read_node_evidence(paths: RunPaths) -> list[NodeEvidence]:
    """All lines that can be read, in the order they were written."""
    return read_lines(paths.output, paths.node_evidence, NodeEvidence)


#: How sure it is that a node that computes so many times as long as others is to blame: by half more, surely.
_SURE_RATIO, _LEAST, _MOST = 1.5, 0.5, 0.95
#: Less slow than this nodes are for good, too: attempt by attempt it would add up, and keep a run off healthy ones.
_LEAST_RATIO = 1.05


def slow_evidence(
    node: str, ratio: float, words: str, attempt: str, at: datetime, known: Iterable[NodeEvidence]
) -> NodeEvidence | None:
    """A line about a slow node; None where it is hardly slow, or where one about this attempt is among `known`."""
    if ratio < _LEAST_RATIO or any(one.node == node and one.kind == SLOW and one.attempt == attempt for one in known):
        return None
    confidence = _LEAST + (_MOST - _LEAST) * min(1.0, max(0.0, (ratio - 1.0) / (_SURE_RATIO - 1.0)))
    return NodeEvidence(
        node=node, kind=SLOW, at=at, words=words, confidence=round(confidence, 2), attempt=attempt, by="watch"
    )


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
