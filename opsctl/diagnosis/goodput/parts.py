"""The parts that a run's time falls into, and amounts of them that add up to the whole, to the millisecond."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Part(StrEnum):
    """What the time of a run goes into. Every millisecond is of one of these."""

    TRAINED = "trained"  # iterations that later ones build on
    EVALUATED = "evaluated"
    SAVED = "saved"  # held up by saves
    STARTED = "started"  # from the job's first breath to its first iteration
    LEFT = "left"  # from the last iteration to the end, where it ended well
    UNDER_WAY = "under way"  # of what runs now, since its last line in the log
    LOST = "lost"  # iterations done in vain, failed starts, hangs and what else came before a bad end; has a cause
    WAITED = "waited"  # in the queue
    IDLE = "idle"  # with nothing of the run in the queue
    UNKNOWN = "not known"


#: A part and, of what was lost, to what.
Key = tuple[Part, str]


@dataclass
class Amounts:
    """Milliseconds of each part, of wall time and of all GPUs."""

    wall_ms: dict[Key, int] = field(default_factory=dict)
    gpu_ms: dict[Key, int] = field(default_factory=dict)

    def add(self, amounts: Mapping[Key, int], gpus: int = 0) -> None:
        """Add amounts of wall time in which so many GPUs were held."""
        for key, ms in ((key, ms) for key, ms in amounts.items() if ms):
            self.wall_ms[key] = self.wall_ms.get(key, 0) + ms
            self.gpu_ms[key] = self.gpu_ms.get(key, 0) + ms * gpus

    @property
    def whole_ms(self) -> int:
        """All of the wall time."""
        return sum(self.wall_ms.values())

    @property
    def whole_gpu_ms(self) -> int:
        """All of the GPUs' time."""
        return sum(self.gpu_ms.values())

    def of(self, part: Part) -> int:
        """Wall time of a part, whatever its cause, in milliseconds."""
        return sum(ms for (one, _), ms in self.wall_ms.items() if one is part)

    def largest_first(self) -> Iterator[tuple[Key, int, int]]:
        """(part and cause, milliseconds of wall time, of GPU time); what was trained first."""
        order = sorted(self.wall_ms.items(), key=lambda item: (item[0][0] is not Part.TRAINED, -item[1], item[0]))
        return ((key, ms, self.gpu_ms.get(key, 0)) for key, ms in order if ms)


def fitted(amounts: Iterable[tuple[Key, int]], whole_ms: int, rest: Key) -> dict[Key, int]:
    """`amounts` with what is left of `whole_ms` as `rest`; where they are more than the whole, all scaled down to it.

    They then add up to the whole exactly: what rounding leaves goes to the largest.
    """
    found: dict[Key, int] = {}
    for key, ms in amounts:
        found[key] = found.get(key, 0) + max(0, ms)
    total = sum(found.values())
    if total <= whole_ms:
        found[rest] = found.get(rest, 0) + whole_ms - total
        return found
    return scaled(found, whole_ms)


def scaled(amounts: Mapping[Key, int], whole_ms: int) -> dict[Key, int]:
    """The same shares of another whole, to the millisecond."""
    total = sum(amounts.values())
    if total == 0:
        return {(Part.UNKNOWN, ""): whole_ms} if whole_ms else {}
    found = {key: ms * whole_ms // total for key, ms in amounts.items()}
    largest = max(found, key=lambda key: found[key])
    found[largest] += whole_ms - sum(found.values())
    return found
