"""The iterations after which a training saves: by an interval, by intervals per phase, and pinned ones.

Pure arithmetic, without torch. Saves on request and before stopping are not scheduled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WORD = re.compile(r"([0-9][0-9_]*)(?::([0-9][0-9_]*))?")


@dataclass(frozen=True)
class SavePhase:
    """The iterations after the previous phase's last one, up to and including `last`; None: to the training's end.

    A phase saves the iterations that `interval` divides, counted from the start of the training. A restart or a change
    of an earlier phase therefore moves no save.
    """

    interval: int
    last: int | None = None


@dataclass(frozen=True)
class SaveSchedule:
    """The schedule of saves: phases, which may be empty, and pinned iterations, which pruning always keeps.

    The last phase has no end. Raises ValueError, in one line, for impossible phases.
    """

    phases: tuple[SavePhase, ...] = ()
    pinned: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        before = 0
        for phase in self.phases[:-1]:
            if phase.last is None:
                raise ValueError(f"{phase.interval} has no end, so nothing can follow it: write {phase.interval}:LAST")
            _check_phase(phase.interval, before, phase.last)
            before = phase.last
        if self.phases and self.phases[-1].last is not None:
            last = self.phases[-1]
            raise ValueError(
                f"{last.interval}:{last.last} is the last phase, and nothing would be saved after iteration "
                f"{last.last}: end with an interval alone"
            )
        if any(phase.interval < 1 for phase in self.phases) or any(one < 1 for one in self.pinned):
            raise ValueError("intervals and iterations begin at 1")

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SaveSchedule:
        """Return the schedule of the options. Raises ValueError like the class, and for words that are no phase."""
        phases: tuple[SavePhase, ...] = ()
        if options["save_schedule"]:
            phases = phases_of(options["save_schedule"])
        elif options["save_interval"]:
            phases = (SavePhase(options["save_interval"]),)
        return cls(phases, frozenset(options["save_iterations"] or ()))

    def __bool__(self) -> bool:
        return bool(self.phases or self.pinned)

    def is_due(self, iteration: int) -> bool:
        """Return True if the training saves after `iteration`."""
        return iteration in self.pinned or self._divides(iteration)

    def next_after(self, iteration: int) -> int | None:
        """Return the first iteration after `iteration` that is saved; None if none is."""
        later = [one for one in self.pinned if one > iteration]
        for first, phase in self._with_first():
            begin = max(iteration + 1, first)
            due = -(-begin // phase.interval) * phase.interval
            if phase.last is None or due <= phase.last:
                later.append(due)
                break
        return min(later, default=None)

    def longest_wait_after(self, iteration: int) -> int | None:
        """Return the iterations to wait for the next save after a save of `iteration`; None if there is none.

        At least the interval of the next save's phase, also if `iteration` was saved on request in between.
        """
        due = self.next_after(iteration)
        if due is None:
            return None
        within = next((phase for phase in self.phases if phase.last is None or due <= phase.last), None)
        return max(due - iteration, within.interval) if within else due - iteration

    def count(self, iterations: int) -> int:
        """Return how many of the first `iterations` are saved."""
        by_phase = 0
        for first, phase in self._with_first():
            last = iterations if phase.last is None else min(phase.last, iterations)
            by_phase += max(0, last // phase.interval - (first - 1) // phase.interval)
        return by_phase + sum(one <= iterations and not self._divides(one) for one in self.pinned)

    def words(self) -> str:
        """Return the schedule as text: `every 10 iterations to 100, every 18 to 1,000, then every 1,500`."""
        texts: list[str] = []
        for phase in self.phases:
            unit = " iterations" if not texts else ""
            until = "" if phase.last is None else f" to {phase.last:,}"
            texts.append(f"{'then ' if texts and phase.last is None else ''}every {phase.interval:,}{unit}{until}")
        if self.pinned:
            texts.append(f"{'and ' if texts else ''}{len(self.pinned):,} pinned")
        return ", ".join(texts)

    def _divides(self, iteration: int) -> bool:
        phase = next((one for one in self.phases if one.last is None or iteration <= one.last), None)
        return phase is not None and iteration > 0 and iteration % phase.interval == 0

    def _with_first(self) -> list[tuple[int, SavePhase]]:
        """Return every phase with its first iteration."""
        firsts = [1, *(phase.last + 1 for phase in self.phases if phase.last is not None)]
        return list(zip(firsts, self.phases, strict=False))


def phases_of(words: Sequence[str]) -> tuple[SavePhase, ...]:
    """Parse phases written as `INTERVAL:LAST`, the last one as `INTERVAL`. Raises ValueError for other words."""
    phases = []
    for word in words:
        match = _WORD.fullmatch(str(word))
        if match is None:
            raise ValueError(f"{word!r} is no phase: write INTERVAL:LAST, and the last one as INTERVAL")
        phases.append(SavePhase(int(match[1]), int(match[2]) if match[2] else None))
    return tuple(phases)


def _check_phase(interval: int, before: int, last: int) -> None:
    if last <= before:
        raise ValueError(f"{interval}:{last} ends before the phase before it does, at {before}")
    if interval < 1 or last // interval == before // interval:
        raise ValueError(f"{interval}:{last} saves nothing: {interval} divides no iteration of {before + 1} to {last}")
