from __future__ import annotations

from opsctl.diagnosis.hangs.flights import behind, told
from trainer.formats.attempt.flight_recorder import GroupProgress


def ranks(group: str, enqueued: dict[int, int], completed: int = 0, about: str = "") -> list[GroupProgress]:
    return [
        GroupProgress(rank=rank, group=group, about=about, enqueued=number, completed=completed, operation="all_reduce")
        for rank, number in enqueued.items()
    ]


def has(line: str, *facts: str) -> bool:
    """Return whether one line has all these facts."""
    return "\n" not in line and all(fact in line for fact in facts)


def test_the_rank_that_is_behind_its_group_is_named_with_what_it_misses() -> None:
    progress = [*ranks("1", {0: 120, 1: 120, 2: 119, 3: 120}, 119, "tensor"), *ranks("0", {0: 5, 1: 5, 2: 5, 3: 5}, 5)]
    assert has(told(progress), "rank 2", "all_reduce", "120", "group tensor", "3 others")
    assert list(behind(progress)) == [2]


def test_several_ranks_that_are_behind_share_one_line() -> None:
    assert has(told(ranks("0", {0: 9, 1: 9, 2: 9, 4: 8, 5: 8})), "ranks 4-5", "all_reduce", "9 ", "group 0", "3 others")


def test_an_operation_that_all_ranks_joined_and_that_does_not_end_is_reported() -> None:
    assert has(told(ranks("0", {0: 9, 1: 9, 2: 9}, completed=8)), "all 3 ranks", "all_reduce", "9 ", "group 0")
    assert told(ranks("0", {0: 9, 1: 9}, completed=9)) == told([]) == ""
