"""Alarms held against what was planted: what was reported in time, what was wrong, what came twice."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.desk.kinds import KINDS, PLANTED, Kind, Trouble
from benchmarks.desk.shapes import DAY_S, HOUR_S
from opsctl.monitoring.check import can_tell
from opsctl.monitoring.finding import Finding, Severity

#: Looks within which a trouble that can be seen is to be reported.
TICKS_ALLOWED = 2


@dataclass(frozen=True)
class Alarm:
    """A finding that was not there at the look before, or had become worse."""

    at: float
    tick: int
    key: str
    is_rise: bool  # it was there, less bad
    text: str
    facts: str = ""  # of that look, for who wants to know why


class Following:
    """Findings by key from look to look, as alerts follow them: new is an alarm, gone is recovered."""

    def __init__(self, checks: Iterable[str]) -> None:
        self._checks = frozenset(checks)
        self._open: dict[str, Severity] = {}
        self.alarms: list[Alarm] = []

    def look(self, at: float, tick: int, findings: Sequence[Finding], facts: str = "") -> None:
        """The findings of one look. A check that could not see recovers nothing."""
        found: dict[str, Finding] = {}
        for finding in findings:
            if finding.severity in (Severity.WARNING, Severity.CRITICAL):
                known = found.get(finding.key)
                if known is None or finding.severity > known.severity:
                    found[finding.key] = finding
        for key, finding in found.items():
            before = self._open.get(key)
            if before is None or finding.severity > before:
                self.alarms.append(Alarm(at, tick, key, before is not None, finding.text, facts))
        kept = {key: old for key, old in self._open.items() if not can_tell(key, findings, self._checks)}
        self._open = kept | {key: finding.severity for key, finding in found.items()}


@dataclass(frozen=True)
class Outcome:
    """The result of one planted trouble."""

    seed: int
    trouble: Trouble
    is_reported: bool  # in time
    late_s: float | None = None  # from when it could be seen to the alarm; None: never
    from_start_s: float | None = None
    again: int = 0  # alarms with a key that had been reported for it before


@dataclass
class Score:
    """The score of one seed; scores add up."""

    days: float = 0.0
    seconds: float = 0.0  # of processor time
    outcomes: list[Outcome] = field(default_factory=list)
    unseen: int = 0  # planted, and over before anyone could see them
    false: list[tuple[int, Alarm]] = field(default_factory=list)
    ordinary: list[tuple[int, Kind, Alarm]] = field(default_factory=list)
    brought: int = 0  # alarms that a planted trouble explains and that are not its own

    def __iadd__(self, other: Score) -> Score:
        self.days += other.days
        self.seconds += other.seconds
        self.outcomes += other.outcomes
        self.unseen += other.unseen
        self.false += other.false
        self.ordinary += other.ordinary
        self.brought += other.brought
        return self

    @property
    def false_in_14_days(self) -> float:
        """The rate that the goal is about."""
        return 14 * len(self.false) / self.days if self.days else 0.0

    @property
    def ordinary_in_14_days(self) -> float:
        """True findings about ordinary operation."""
        return 14 * len(self.ordinary) / self.days if self.days else 0.0

    def reported_share(self, kinds: Sequence[Kind] = PLANTED) -> float:
        """Return the share of the planted troubles of these kinds that was reported in time."""
        own = [one.is_reported for one in self.outcomes if one.trouble.kind in kinds]
        return sum(own) / len(own) if own else 0.0


def score(
    seed: int, troubles: Sequence[Trouble], alarms: Sequence[Alarm], looks: Sequence[float], seconds: float = 0.0
) -> Score:
    """Hold the alarms of one seed against its troubles. looks: the times of all looks."""
    found = Score(days=(looks[-1] - looks[0]) / DAY_S, seconds=seconds)
    for trouble in troubles:
        if not trouble.kind.is_planted:
            continue
        later = [at for at in looks if trouble.can_be_seen(at)]
        if len(later) < TICKS_ALLOWED:
            found.unseen += 1
            continue
        found.outcomes.append(_outcome(seed, trouble, alarms, later[TICKS_ALLOWED - 1]))
    for alarm in alarms:
        causes = [one.kind for one in troubles if one.covers(alarm.at) and one.kind.explains(alarm.key)]
        if not causes:
            found.false.append((seed, alarm))
        elif not any(kind.is_planted for kind in causes):
            found.ordinary.append((seed, causes[0], alarm))
        elif not any(kind.reports(alarm.key) for kind in causes):
            found.brought += 1
    return found


def _outcome(seed: int, trouble: Trouble, alarms: Sequence[Alarm], deadline: float) -> Outcome:
    end = max(deadline, trouble.ends_at if trouble.ends_at is not None else deadline)
    own = [alarm for alarm in alarms if trouble.starts_at <= alarm.at <= end and trouble.kind.reports(alarm.key)]
    keys = [alarm.key for alarm in own if not alarm.is_rise]
    first = own[0].at if own else None
    assert trouble.seen_from is not None
    return Outcome(
        seed,
        trouble,
        is_reported=first is not None and first <= deadline,
        late_s=None if first is None else first - trouble.seen_from,
        from_start_s=None if first is None else first - trouble.starts_at,
        again=len(keys) - len(set(keys)),
    )


def rows(total: Score) -> list[tuple[str, int, str, str, str, int, str]]:
    """A row for each planted kind: name, times, reported in time, median hours from start and visible, again, rule."""
    table = []
    for kind in KINDS:
        own = [one for one in total.outcomes if one.trouble.kind == kind]
        if not kind.is_planted or not own:
            continue
        share = sum(one.is_reported for one in own) / len(own)
        table.append(
            (
                kind.name,
                len(own),
                f"{100 * share:.0f} %",
                _hours([one.from_start_s for one in own]),
                _hours([one.late_s for one in own]),
                sum(one.again for one in own),
                kind.visible,
            )
        )
    return table


def _hours(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known) / HOUR_S:.1f}" if known else "-"
