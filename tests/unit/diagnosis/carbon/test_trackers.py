from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.carbon.trackers import WHOLE, Found, Span, counted_once, covered_s, find, spans_of
from tests.unit.diagnosis.carbon.trackers import ours, record
from trainer.formats.attempt.carbon import Reading


def test_records_are_found_and_other_files_are_not(tmp_path: Path) -> None:
    for name in ("emissions-7-n1-a.csv", ".emissions.csv", "emissions.csv.tmp", "notes.txt"):
        (tmp_path / name).write_text(record(name))
    found = find(tmp_path)
    assert found is not None
    assert ([one.run_id for one in found.readings], found.files) == (["emissions-7-n1-a.csv"], 1)


def test_what_cannot_be_read_is_said_and_hides_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(record("a"))
    (tmp_path / "b.csv").symlink_to("a.csv")
    (tmp_path / "c.csv").mkdir()
    (tmp_path / "d.csv").write_bytes(b"\xff\x00\xfe")
    found = find(tmp_path)
    assert found is not None
    assert [one.run_id for one in found.readings] == ["a"]
    assert len(found.problems) == 3
    assert find(tmp_path / "none") == Found()


def test_a_look_reads_no_more_than_it_may(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(record(name))
    assert find(tmp_path, most=2) is None
    assert find(tmp_path, most=3) is not None


def kwh(readings: list[Reading]) -> float:
    return sum(counted_once(span for one in readings for span in spans_of(one)).values())


def span(began_s: float, ended_s: float, kwh: float, key: str = WHOLE, node: str = "n1", part: str = "cpu") -> Span:
    return Span(node, part, key, began_s, ended_s, kwh)


@pytest.mark.parametrize(
    ("spans", "kwh"),
    [
        ([], 0.0),
        ([span(0, 10, 5)], 5),
        ([span(0, 10, 5), span(0, 10, 5)], 5),  # two trackers of one node
        ([span(0, 10, 5), span(0, 10, 7)], 6),  # their mean
        ([span(0, 10, 5), span(5, 15, 5)], 7.5),
        ([span(0, 10, 5), span(10, 20, 5)], 10),
        ([span(0, 10, 5), span(0, 10, 5, node="n2")], 10),
        ([span(0, 10, 5), span(0, 10, 2, part="gpu")], 7),
        ([span(0, 10, 2, "job 1"), span(0, 10, 3, "job 2")], 5),  # shares of two jobs
        ([span(0, 10, 2, "job 1"), span(0, 10, 2, "job 1")], 2),
        ([span(0, 10, 2, "job 1"), span(0, 10, 8)], 8),  # a whole node's tracker saw the job's share too
        ([span(0, 10, 9, "a"), span(0, 10, 3, "b"), span(0, 10, 8)], 12),
        ([span(0, 10, 5), span(2, 8, 6)], 5 * 0.4 + (5 * 0.6 + 6) / 2),
        ([span(3, 3, 1)], 1),
        ([span(3, 3, 1), span(3, 3, 1)], 1),
    ],
)
def test_what_several_saw_is_counted_once(spans: list[Span], kwh: float) -> None:
    assert sum(counted_once(spans).values()) == pytest.approx(kwh)
    assert sum(counted_once(reversed(spans)).values()) == pytest.approx(kwh)


@given(order=st.permutations(range(8)))
def test_the_sum_does_not_depend_on_the_order_of_trackers(order: list[int]) -> None:
    readings = [
        ours("n1", "7", run_id=f"{one}", began_h=one % 3 / 10, hours=1 + one / 10, devices=None) for one in range(8)
    ]
    assert kwh([readings[one] for one in order]) == pytest.approx(kwh(readings), rel=1e-12)


@given(cuts=st.lists(st.floats(0.01, 0.99), max_size=6, unique=True))
def test_the_sum_does_not_depend_on_how_a_training_was_cut_into_attempts(cuts: list[float]) -> None:
    edges = [0.0, *sorted(cuts), 1.0]
    pieces = [
        ours("n1", f"{number}", began_h=began, hours=ended - began)
        for number, (began, ended) in enumerate(itertools.pairwise(edges))
    ]
    assert kwh(pieces) == pytest.approx(kwh([ours("n1", "0")]))


@given(shares=st.lists(st.floats(0.05, 0.3), min_size=1, max_size=3), seed=st.integers())
def test_jobs_that_share_a_node_add_up_to_their_shares_and_never_to_more_than_the_node(
    shares: list[float], seed: int
) -> None:
    jobs = [ours("n1", f"{job}", share, devices=(f"GPU-{job}",)) for job, share in enumerate(shares)]
    random.Random(seed).shuffle(jobs)
    assert kwh(jobs) == pytest.approx(0.6 * sum(shares) + 1.4 * len(shares))


def test_gpus_with_the_same_number_in_two_jobs_are_two() -> None:
    readings = [ours("n1", "7", 0.5, ("0", "1")), ours("n1", "8", 0.5, ("0", "1"))]
    assert kwh(readings) == pytest.approx(0.6 + 2 * 1.4)
    same = [ours("n1", "7", 0.5, ("GPU-a",)), ours("n1", "7", 0.5, ("GPU-a",), run_id="again")]
    assert kwh(same) == pytest.approx(0.3 + 1.4)


@pytest.mark.parametrize(
    ("stretches", "seconds"),
    [([], 0), ([(0, 2)], 2), ([(0, 2), (1, 3)], 3), ([(4, 5), (0, 2)], 3), ([(0, 9), (1, 2)], 9), ([(3, 3)], 0)],
)
def test_time_that_two_cover_is_covered_once(stretches: list[tuple[float, float]], seconds: float) -> None:
    assert covered_s(stretches) == seconds
