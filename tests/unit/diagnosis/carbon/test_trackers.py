from __future__ import annotations

import itertools
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.core.errors import UsageError
from opsctl.diagnosis.carbon.trackers import WHOLE, Placing, Span, counted_once, covered_s, find, placed
from tests.unit.diagnosis.carbon.trackers import ours, rank_file, theirs
from trainer.formats.attempt.carbon import Reading


def test_files_of_every_name_that_codecarbon_gives_are_found_and_others_are_not(tmp_path: Path) -> None:
    for name in ("emissions-000.csv", "emissions.csv.bak", "emissions.csv_0.bak", ".emissions.csv.tmp", "notes.txt"):
        (tmp_path / name).write_text(rank_file([(name, "10:00:00", 1, 4)]))
    found = find([tmp_path])
    assert found is not None
    assert sorted(one.run_id for one in found.readings) == [
        "emissions-000.csv",
        "emissions.csv.bak",
        "emissions.csv_0.bak",
    ]
    assert found.files == 3


def test_a_folder_and_its_copy_with_more_in_it_count_each_tracker_once(tmp_path: Path) -> None:
    there, copy = tmp_path / "a", tmp_path / "b"
    there.mkdir()
    for rank in range(4):
        (there / f"emissions-{rank:03}.csv").write_text(rank_file([(f"run {rank}", "10:00:00", 1, 4)]))
    shutil.copytree(there, copy)
    (copy / "emissions-002.csv").write_text(rank_file([("run 2", "10:00:00", 1, 4), ("run 2", "11:00:00", 2, 8)]))
    found = find([copy, there])
    assert found is not None
    assert sorted((Path(one.file).parent.name, one.gpu_kwh) for one in found.readings) == [("a", 4.0)] * 3 + [
        ("a", 8.0)
    ]


def test_what_cannot_be_read_is_said_and_hides_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(rank_file([("a", "10:00:00", 1, 4)]))
    (tmp_path / "b.csv").symlink_to("a.csv")
    (tmp_path / "c.csv").mkdir()
    (tmp_path / "d.csv").write_bytes(b"\xff\x00\xfe")
    found = find([tmp_path, tmp_path / "none"])
    assert found is not None
    assert [one.run_id for one in found.readings] == ["a"]
    assert len(found.problems) == 3


def test_a_look_reads_no_more_than_it_may(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text(rank_file([(name, "10:00:00", 1, 4)]))
    assert find([tmp_path], most=2) is None
    assert find([tmp_path], most=3) is not None


def kwh(readings: list[Reading], placing: Placing | None = None) -> float:
    return sum(counted_once(span for one in placed(readings, placing or Placing()) for span in one.spans).values())


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


@given(ranks=st.integers(1, 16), nodes=st.integers(1, 4), late_s=st.floats(0, 1e-3))
def test_the_sum_does_not_depend_on_how_many_ranks_of_a_node_had_a_tracker(
    ranks: int, nodes: int, late_s: float
) -> None:
    readings = [
        theirs(f"x/emissions-{rank:03}.csv", f"{rank}", began_h=rank % ranks * late_s, gpus=ranks)
        for rank in range(ranks * nodes)
    ]
    assert kwh(readings) == pytest.approx(2.0 * nodes, rel=0.02)


@given(order=st.permutations(range(8)))
def test_the_sum_does_not_depend_on_the_order_of_files(order: list[int]) -> None:
    readings = [theirs(f"x/emissions-{rank:03}.csv", f"{rank}", rank % 3 / 10, 1 + rank / 10) for rank in range(8)]
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


def test_two_jobs_on_one_node_each_with_a_tracker_of_the_whole_node_are_the_node_once() -> None:
    """Codecarbon's own files name neither host nor job; both are in one folder, and given as one node."""
    readings = [theirs("x/emissions-000.csv", "job 1"), theirs("x/emissions-001.csv", "job 2", began_h=0.5)]
    assert kwh(readings, Placing(ranks_per_node=2)) == pytest.approx(3.0)  # 1.5 hours of 2 kW


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


RANKS = [theirs(f"x/emissions-{rank:03}.csv", f"{rank}") for rank in range(8)]


def test_a_rank_in_a_files_name_says_its_node() -> None:
    assert {one.node for one in placed(RANKS, Placing())} == {"x/node 0", "x/node 1"}
    assert {one.node for one in placed(RANKS, Placing(ranks_per_node=8))} == {"x/node 0"}
    assert placed([ours("n7", "1")], Placing())[0].node == "n7"


def test_of_512_rank_files_at_4_gpus_a_node_each_of_128_nodes_counts_once() -> None:
    """The size of the published records of the 13B model, whose overlaps were unknown."""
    readings = [theirs(f"x/emissions-{rank:03}.csv", f"{rank}", hours=10) for rank in range(512)]
    assert kwh(readings, Placing()) == pytest.approx(128 * 20)
    assert sum(one.kwh for one in readings) == pytest.approx(4 * 128 * 20)
    # Had each tracker seen its own GPU alone, the GPUs would be four times as many, and the rest not.
    assert kwh(readings, Placing(has_own_gpu=True)) == pytest.approx(128 * (6 + 4 * 14))


def test_ranks_of_which_nobody_says_how_many_share_a_node_are_not_added_up() -> None:
    unknown = [replace(one, gpu_count=None) for one in RANKS]
    with pytest.raises(UsageError, match=r"^x: emissions-000.csv .*emissions-001.csv .* --ranks-per-node N$"):
        placed(unknown, Placing())
    assert kwh(unknown, Placing(ranks_per_node=4)) == pytest.approx(4.0)
    one_after_another = [theirs(f"x/emissions-{n:03}.csv", f"{n}", began_h=n, gpus=None) for n in range(3)]
    assert kwh(one_after_another, Placing()) == pytest.approx(6.0)


def test_the_same_ranks_of_two_folders_are_two_trainings() -> None:
    other = [replace(one, file=one.file.replace("x/", "y/"), run_id=f"y{one.run_id}") for one in RANKS]
    assert kwh([*RANKS, *other], Placing()) == pytest.approx(8.0)


def test_trackers_of_processes_are_each_a_part_of_the_node() -> None:
    readings = [replace(one, is_process=True, gpu_kwh=0.0) for one in RANKS]
    assert kwh(readings, Placing()) == pytest.approx(8 * 0.6)


def test_what_codecarbon_added_for_the_building_is_taken_off_again() -> None:
    assert kwh([theirs("e.csv", "r", pue=2.0)], Placing()) == pytest.approx(1.0)
