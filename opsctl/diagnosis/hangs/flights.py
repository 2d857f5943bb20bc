"""Which rank is behind the others of its process group, by what torch's flight recorder says of each. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.diagnosis.hangs.grouping import folded
from trainer.formats.attempt.flight_recorder import GroupProgress


def behind(progress: Sequence[GroupProgress]) -> dict[int, GroupProgress]:
    """Ranks that have not asked for an operation that others of the same group have: rank -> how far those are.

    A rank that is behind in several groups is told of the one that most others wait in.
    """
    late: dict[int, tuple[int, GroupProgress]] = {}
    for members in _by_group(progress).values():
        first = max(members, key=lambda one: one.enqueued)
        waiting = sum(one.enqueued == first.enqueued for one in members)
        for one in members:
            if one.enqueued < first.enqueued and waiting > late.get(one.rank, (0, first))[0]:
                late[one.rank] = (waiting, first)
    return {rank: first for rank, (_, first) in sorted(late.items())}


def told(progress: Sequence[GroupProgress]) -> str:
    """`rank 3 has not come to all_reduce, number 120 of group tensor: 7 others wait there`; empty where none is late.

    Where all have come and it does not end, that is said: then it is no program that is late, but what carries it.
    """
    late = behind(progress)
    groups = _by_group(progress)
    if not late:
        return next(filter(None, map(_unfinished, groups.values())), "")
    first = max(late.values(), key=lambda one: sum(other is one for other in late.values()))
    ranks = [rank for rank, one in late.items() if one is first]
    waiting = sum(one.enqueued == first.enqueued for one in groups[first.group])
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {folded(ranks)} have"
    return f"{who} not come to {_what(first, first.enqueued)}: {waiting} others wait there"


def _unfinished(members: Sequence[GroupProgress]) -> str:
    first = members[0]
    if len(members) < 2 or all(one.completed >= one.enqueued for one in members) or not first.operation:
        return ""
    return f"all {len(members)} ranks have come to {_what(first, first.enqueued)}, and it does not end"


def _what(one: GroupProgress, number: int) -> str:
    return f"{one.operation or 'an operation'}, number {number} of group {one.about or one.group}"


def _by_group(progress: Sequence[GroupProgress]) -> dict[str, list[GroupProgress]]:
    groups: dict[str, list[GroupProgress]] = {}
    for one in progress:
        groups.setdefault(one.group, []).append(one)
    return groups
