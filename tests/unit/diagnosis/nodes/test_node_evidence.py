from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from opsctl.diagnosis.nodes.judging import judge
from opsctl.diagnosis.nodes.node_evidence import (
    NodeEvidence,
    Policy,
    last_samples,
    rank_timings,
    samples,
    slow_evidence,
)
from trainer.formats.attempt.node_samples import NodeSample, RankTiming
from trainer.formats.json_text import json_line

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


def sample(node: str, minute: int, available: int = 50) -> str:
    return json_line(
        NodeSample(at=NOON + timedelta(minutes=minute), node=node, memory_bytes=100, available_bytes=available)
    )


def test_the_last_whole_sample_of_each_node_is_told_and_a_torn_line_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "samples-0.jsonl").write_text(sample("n1", 1) + "\n" + sample("n1", 2, 1) + "\n" + sample("n1", 3)[:40])
    (folder / "samples-1.jsonl").write_text(sample("n2", 1) + '\n{"node": "n2"}\n{"colour": 1}\n')
    found = last_samples(tmp_path, folder)
    assert [(one.node, one.at.minute, one.memory_share) for one in found] == [("n1", 2, 0.99), ("n2", 1, 0.5)]
    assert len(samples(tmp_path, folder)) == 3
    assert last_samples(tmp_path, tmp_path / "none") == ()


def test_a_file_of_somebody_elses_making_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "timings-0.jsonl").symlink_to("/etc/passwd")
    timing = RankTiming(rank=0, stage=0, iteration=10, iterations=10, own_s=1.0, step_s=1.0, node="n1")
    (tmp_path / "timings-1.jsonl").write_text(json_line(timing) + "\n")
    assert rank_timings(tmp_path, tmp_path) == (timing,)


@pytest.mark.parametrize(
    ("sample", "share"),
    [
        (NodeSample(at=NOON, node="n"), 0.0),
        (NodeSample(at=NOON, node="n", memory_bytes=100, available_bytes=1), 0.99),
        (NodeSample(at=NOON, node="n", memory_bytes=100, available_bytes=80, limit_bytes=40, limited_bytes=39), 0.975),
    ],
)
def test_memory_is_as_full_as_the_node_or_the_jobs_part_of_it(sample: NodeSample, share: float) -> None:
    assert sample.memory_share == pytest.approx(share)


BEGAN = datetime(2026, 11, 1, tzinfo=UTC)
PARTITION = [f"n{place}" for place in range(60)]


@pytest.mark.parametrize(("ratio", "is_excluded"), [(1.035, False), (1.2, True)])
def test_a_node_that_is_hardly_slower_is_told_and_never_excluded_for_it_however_often(
    ratio: float, is_excluded: bool
) -> None:
    known: list[NodeEvidence] = []
    for number in range(30):
        at = BEGAN + timedelta(hours=4 * number)
        line = slow_evidence("n0", ratio, "slow", f"a{number}", at, known)
        known += [line] if line is not None else []
    assert bool(judge(known, [], at, PARTITION, Policy())) == is_excluded


def test_a_node_that_becomes_slower_within_an_attempt_is_put_on_record_then_and_once() -> None:
    assert slow_evidence("n0", 1.035, "slow", "a", BEGAN, []) is None
    line = slow_evidence("n0", 1.3, "slow", "a", BEGAN, [])
    assert line is not None
    assert slow_evidence("n0", 1.4, "slow", "a", BEGAN, [line]) is None
