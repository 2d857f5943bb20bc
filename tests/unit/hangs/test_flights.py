from __future__ import annotations

from opsctl.hangs.flights import behind, told
from trainer.formats.flight_recorder import GroupProgress


def ranks(group: str, enqueued: dict[int, int], completed: int = 0, about: str = "") -> list[GroupProgress]:
    return [
        GroupProgress(rank=rank, group=group, about=about, enqueued=number, completed=completed, operation="all_reduce")
        for rank, number in enqueued.items()
    ]


def test_the_rank_that_is_behind_its_group_is_named_with_what_it_misses() -> None:
    progress = [*ranks("1", {0: 120, 1: 120, 2: 119, 3: 120}, 119, "tensor"), *ranks("0", {0: 5, 1: 5, 2: 5, 3: 5}, 5)]
    assert told(progress) == "rank 2 has not come to all_reduce, number 120 of group tensor: 3 others wait there"
    assert list(behind(progress)) == [2]


def test_several_that_are_behind_are_one_sentence() -> None:
    said = told(ranks("0", {0: 9, 1: 9, 2: 9, 4: 8, 5: 8}))
    assert said == "ranks 4-5 have not come to all_reduce, number 9 of group 0: 3 others wait there"


def test_where_all_have_come_and_it_does_not_end_that_is_said() -> None:
    said = "all 3 ranks have come to all_reduce, number 9 of group 0, and it does not end"
    assert told(ranks("0", {0: 9, 1: 9, 2: 9}, completed=8)) == said
    assert told(ranks("0", {0: 9, 1: 9}, completed=9)) == told([]) == ""
