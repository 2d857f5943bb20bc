"""Group ranks with equal stacks, and find the rank that the others wait for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.diagnosis.hangs.frames import Place, is_of_all, place_of
from opsctl.run.attempts.verdict import StackGroup
from trainer.formats.attempt.error_file import GroupProgress, RankStack

#: Groups that are recorded.
_MOST_GROUPS = 16


@dataclass(frozen=True)
class Group:
    """Ranks at the same place."""

    place: Place
    stacks: tuple[RankStack, ...]  # in order of rank
    is_odd: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return their numbers, ascending."""
        return tuple(one.rank for one in self.stacks)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return their nodes, each once, in order of rank."""
        return tuple(dict.fromkeys(one.node for one in self.stacks if one.node))

    def recorded(self) -> StackGroup:
        """Return the group as an attempt records it."""
        return StackGroup(
            ranks=folded(self.ranks),
            count=len(self.stacks),
            nodes=self.nodes,
            frames=tuple(map(str, self.place.frames)) or (self.place.words,),
            collective=self.place.collective,
            is_odd=self.is_odd,
        )


def grouped(stacks: Sequence[RankStack]) -> tuple[Group, ...]:
    """Group ranks with equal stacks: groups that the others wait for first, then the largest."""
    found: dict[tuple[object, ...], list[tuple[Place, RankStack]]] = {}
    for one in sorted(stacks, key=lambda stack: stack.rank):
        place = place_of(one)
        found.setdefault(place.key, []).append((place, one))
    odd = _odd([(members[0][0], len(members)) for members in found.values()])
    groups = [
        Group(members[0][0], tuple(stack for _, stack in members), is_odd)
        for members, is_odd in zip(found.values(), odd, strict=True)
    ]
    return tuple(sorted(groups, key=lambda group: (not group.is_odd, -len(group.stacks), group.ranks)))


def _odd(places: Sequence[tuple[Place, int]]) -> list[bool]:
    """Return for each place, given with its number of ranks, if the others wait for it.

    If some processes cannot continue (stopped, gone): those. Else, if some ranks wait in a collective and some wait
    for no other rank: the latter. Else, if more than half wait in one collective and the rest in others: the rest. If
    no rank waits for all, or all wait in the same place: none.
    """
    none = [False] * len(places)
    stuck = [bool(place.trouble) for place, _ in places]
    if any(stuck):
        return stuck if not all(stuck) else none
    if not any(place.collective for place, _ in places):
        return none
    busy = [not place.collective for place, _ in places]
    if any(busy):
        # More ranks work than wait: the training works, and some ranks arrived early.
        at_work = sum(count for (_, count), is_busy in zip(places, busy, strict=True) if is_busy)
        return busy if 2 * at_work <= sum(count for _, count in places) else none
    by_collective = Counter[tuple[str, str, int]]()
    for place, count in places:
        by_collective[_call(place)] += count
    call, count = by_collective.most_common(1)[0]
    if not is_of_all(call[0]) or 2 * count <= sum(by_collective.values()):
        return none
    return [_call(place) != call for place, _ in places]


def _call(place: Place) -> tuple[str, str, int]:
    """Return the collective and its caller."""
    caller = place.caller
    return (place.collective, caller.file if caller else "", caller.line if caller else 0)


def recorded(groups: Sequence[Group]) -> tuple[StackGroup, ...]:
    """Return the first groups as an attempt records them: a healthy training can have as many groups as ranks."""
    return tuple(group.recorded() for group in groups[:_MOST_GROUPS])


def folded(ranks: Sequence[int]) -> str:
    """Return ascending numbers in short form: `0-6,8`."""
    rows: list[list[int]] = []
    for rank in ranks:
        if rows and rank == rows[-1][-1] + 1:
            rows[-1][1:] = [rank]
        else:
            rows.append([rank])
    return ",".join("-".join(map(str, row)) for row in rows)


def behind(progress: Sequence[GroupProgress]) -> dict[int, GroupProgress]:
    """Return ranks that lag in a process group -> the farthest member of the group in which most others wait."""
    late: dict[int, tuple[int, GroupProgress]] = {}
    for members in _by_group(progress).values():
        first = max(members, key=lambda one: one.enqueued)
        waiting = sum(one.enqueued == first.enqueued for one in members)
        for one in members:
            if one.enqueued < first.enqueued and waiting > late.get(one.rank, (0, first))[0]:
                late[one.rank] = (waiting, first)
    return {rank: first for rank, (_, first) in sorted(late.items())}


def flight_summary(progress: Sequence[GroupProgress]) -> str:
    """Return which ranks lag and where others wait, or that all wait in an unfinished operation; else empty."""
    late = behind(progress)
    groups = _by_group(progress)
    if not late:
        return next(filter(None, map(_unfinished, groups.values())), "")
    first = max(late.values(), key=lambda one: sum(other is one for other in late.values()))
    ranks = [rank for rank, one in late.items() if one is first]
    waiting = sum(one.enqueued == first.enqueued for one in groups[first.group])
    who = f"rank {ranks[0]} has" if len(ranks) == 1 else f"ranks {folded(ranks)} have"
    return f"{who} not reached {_what(first, first.enqueued)}, where {waiting} others wait"


def _unfinished(members: Sequence[GroupProgress]) -> str:
    first = members[0]
    if len(members) < 2 or all(one.completed >= one.enqueued for one in members) or not first.operation:
        return ""
    return f"all {len(members)} ranks have reached {_what(first, first.enqueued)}, which does not end"


def _what(one: GroupProgress, number: int) -> str:
    return f"{one.operation or 'an operation'}, number {number} of group {one.about or one.group}"


def _by_group(progress: Sequence[GroupProgress]) -> dict[str, list[GroupProgress]]:
    groups: dict[str, list[GroupProgress]] = {}
    for one in progress:
        groups.setdefault(one.group, []).append(one)
    return groups
