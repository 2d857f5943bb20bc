from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.hangs.grouping import behind, flight_summary, folded, grouped, recorded
from tests.unit.diagnosis.hangs.ranks import stack, waits
from trainer.formats.attempt.error_file import GroupProgress, RankStack


def odd(stacks: list[RankStack]) -> list[int]:
    return [rank for group in grouped(stacks) if group.is_odd for rank in group.ranks]


def test_a_rank_that_is_elsewhere_is_what_the_others_wait_for() -> None:
    assert odd([*map(waits, range(3)), stack(3, "sleeping@/run/user.py:4", "train@/run/train.py:8")]) == [3]


def test_a_stopped_rank_is_odd_whatever_its_stack_says() -> None:
    stopped = RankStack(**{**{name: getattr(waits(2), name) for name in RankStack.__struct_fields__}, "state": "T"})
    at_work = stack(3, "forward", "train")
    assert odd([waits(0), waits(1), stopped, at_work]) == [2]


def test_of_ranks_in_two_collectives_the_few_are_odd_and_of_halves_none() -> None:
    others = [waits(rank, "broadcast", 50) for rank in (6, 7)]
    assert odd([*map(waits, range(6)), *others]) == [6, 7]
    assert odd([waits(0), waits(1), waits(2, "broadcast"), waits(3, "broadcast")]) == []
    assert odd([*map(waits, range(3)), waits(3, caller_line=99)]) == [3], "the same collective, called from elsewhere"


def test_nobody_is_odd_where_nobody_or_everybody_waits() -> None:
    assert odd([stack(rank, "forward", "train") for rank in range(3)] + [stack(3, "backward", "train")]) == []
    assert odd([*map(waits, range(4))]) == []
    assert odd([waits(0), *(stack(rank, "forward", "train") for rank in (1, 2, 3))]) == [], "one came early"
    assert odd([]) == []
    receive = "recv@/x/site-packages/torch/distributed/distributed_c10d.py:5"
    assert odd([stack(0, receive, "f"), stack(1, receive, "f"), waits(2)]) == [], "stages wait for their neighbours"


def test_1024_ranks_are_grouped_and_the_odd_one_comes_first() -> None:
    stacks = [waits(rank, node=f"n{rank // 8:03d}") for rank in range(1024) if rank != 517]
    stacks.append(stack(517, *(f"frame{number}" for number in range(40)), node="n064"))
    first, rest = recorded(grouped(stacks))
    assert (first.ranks, first.count, first.nodes, first.is_odd, first.collective) == ("517", 1, ("n064",), True, "")
    assert (rest.ranks, rest.count, len(rest.nodes)) == ("0-516,518-1023", 1023, 128)
    assert (rest.collective, rest.frames[0]) == ("all_reduce", "all_reduce (distributed_c10d.py:3040)")


@pytest.mark.parametrize(("ranks", "text"), [([], ""), ([3], "3"), ([0, 1], "0-1"), ([0, 2, 3, 4, 9], "0,2-4,9")])
def test_ranks_are_folded(ranks: list[int], text: str) -> None:
    assert folded(ranks) == text


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_every_rank_is_in_one_group(places: list[int]) -> None:
    made = [waits(rank) if place == 0 else stack(rank, f"f{place}") for rank, place in enumerate(places)]
    groups = grouped(made)
    assert sorted(rank for group in groups for rank in group.ranks) == list(range(len(places)))
    assert not all(group.is_odd for group in groups)


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
    assert has(flight_summary(progress), "rank 2", "all_reduce", "120", "group tensor", "3 others")
    assert list(behind(progress)) == [2]


def test_several_ranks_that_are_behind_share_one_line() -> None:
    assert has(
        flight_summary(ranks("0", {0: 9, 1: 9, 2: 9, 4: 8, 5: 8})),
        "ranks 4-5",
        "all_reduce",
        "9 ",
        "group 0",
        "3 others",
    )


def test_an_operation_that_all_ranks_joined_and_that_does_not_end_is_reported() -> None:
    assert has(
        flight_summary(ranks("0", {0: 9, 1: 9, 2: 9}, completed=8)), "all 3 ranks", "all_reduce", "9 ", "group 0"
    )
    assert flight_summary(ranks("0", {0: 9, 1: 9}, completed=9)) == flight_summary([]) == ""
