from __future__ import annotations

from dataclasses import replace

import pytest

from opsctl.core.errors import UsageError
from opsctl.diagnosis.carbon.overlap import counted_once
from opsctl.diagnosis.carbon.placement import Placing, placed
from tests.unit.diagnosis.carbon.trackers import ours, theirs


def kwh(readings: list, placing: Placing) -> float:  # type: ignore[type-arg]
    return sum(counted_once(span for one in placed(readings, placing) for span in one.spans).values())


RANKS = [theirs(f"x/emissions-{rank:03}.csv", f"{rank}") for rank in range(8)]


def test_a_rank_in_a_files_name_says_its_node() -> None:
    assert {one.node for one in placed(RANKS, Placing())} == {"x/node 0", "x/node 1"}
    assert {one.node for one in placed(RANKS, Placing(ranks_per_node=8))} == {"x/node 0"}
    assert placed([ours("n7", "1")], Placing())[0].node == "n7"


def test_of_512_rank_files_at_4_gpus_a_node_each_of_128_nodes_counts_once() -> None:
    """The size of the records that the 13B model's makers published, of which they could not say what overlaps."""
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
