"""Which ranks hold other numbers than those that should hold the same: a pure comparison of their sums."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# So many findings are named in the one line; a broken rank differs in all that it has.
_NAMED = 3


@dataclass(frozen=True)
class Item:
    """One thing that a rank holds and others hold too: `what` of the parameter `name`.

    All ranks with the same name, what and `part` should have the same sum. With a `holder` a sum is that of the rank's
    share, and the totals over the ranks of each holder should be the same.
    """

    name: str  # as in the table of parameters
    what: str  # weight, master weight, exp_avg, ...
    part: tuple[int, ...] = ()
    holder: int | None = None


@dataclass(frozen=True)
class Drift:
    """A difference: the ranks that should all hold the same, as groups that do; the largest of them first."""

    item: Item
    sides: tuple[tuple[int, ...], ...]

    def words(self) -> str:
        """Which ranks are apart from most, or, where there is no majority, which stand against which."""
        what = f"{self.item.what} of {self.item.name}"
        most, *others = self.sides
        if len(most) > len(others[0]):
            apart = sorted(rank for side in others for rank in side)
            return f"{what} on {_ranks(apart)} differs from {_ranks(most)}"
        return f"{what} differs: {' against '.join(_ranks(side) for side in sorted(self.sides))}"


def drifts(items: Sequence[Sequence[Item]], sums: Sequence[Sequence[int]]) -> list[Drift]:
    """What differs, by rank: `items[rank]` and their sums in the same order. In the order of the first rank's items."""
    held: dict[tuple[str, str, tuple[int, ...]], dict[tuple[int, ...], int]] = {}
    first: dict[tuple[str, str, tuple[int, ...]], Item] = {}
    shares: dict[tuple[str, str, tuple[int, ...], int], dict[int, int]] = defaultdict(dict)
    for rank, (own, values) in enumerate(zip(items, sums, strict=True)):
        for item, value in zip(own, values, strict=True):
            key = item.name, item.what, item.part
            first.setdefault(key, item)
            holders = held.setdefault(key, {})
            if item.holder is None:
                holders[rank,] = value
            else:
                shares[*key, item.holder][rank] = value
    for (name, what, part, _), by_rank in shares.items():
        held[name, what, part][tuple(by_rank)] = sum(by_rank.values()) % (1 << 64)
    return [found for key, holders in held.items() if (found := _compared(first[key], holders))]


def drift_line(found: Sequence[Drift], iteration: int) -> str:
    """The one line about it."""
    named = "; ".join(one.words() for one in found[:_NAMED])
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        f"after iteration {iteration} ranks hold different numbers where they should hold the same: {named}{more}. "
        "Nothing is saved of it: look at the nodes of those ranks, and go on from the checkpoint before"
    )


def _compared(item: Item, holders: Mapping[tuple[int, ...], int]) -> Drift | None:
    by_value: dict[int, list[int]] = defaultdict(list)
    for ranks, value in holders.items():
        by_value[value].extend(ranks)
    if len(by_value) == 1:
        return None
    sides = sorted((tuple(sorted(ranks)) for ranks in by_value.values()), key=lambda side: (-len(side), side))
    return Drift(item, tuple(sides))


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2 and 4 to 7`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [
        word
        for low, high in runs
        for word in ([str(low)] if low == high else [str(low), str(high)] if high == low + 1 else [f"{low} to {high}"])
    ]
    joined = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {joined}"
