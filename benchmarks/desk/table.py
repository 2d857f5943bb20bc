"""The scores as a table against the goals."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.desk import DETECTION_GOAL, FALSE_ALARM_GOAL
from benchmarks.desk.kinds import PLANTED, Kind
from benchmarks.desk.score import Score, rows
from benchmarks.desk.shapes import HOUR_S
from opsctl.monitoring.registry import DETECTORS

_HEAD = ("planted", "times", "in time", "h from start", "h from visible", "again", "could be seen")


def claimed() -> list[Kind]:
    """The planted kinds that a check of today claims."""
    keys = [detector.name for detector in DETECTORS]
    return [kind for kind in PLANTED if any(kind.reports(key) or kind.reports(f"{key}:x") for key in keys)]


def figures(total: Score, wall_s: float) -> dict[str, Any]:
    """Return what the table says, for programs."""
    kinds = claimed()
    own = [one for one in total.outcomes if one.trouble.kind in kinds]
    return {
        "days": total.days,
        "planted": len(own),
        "reported_share": total.reported_share(kinds),
        "reported_share_goal": DETECTION_GOAL,
        "false_alarms_in_14_days": total.false_in_14_days,
        "false_alarms_in_14_days_goal": FALSE_ALARM_GOAL,
        "ordinary_alarms_in_14_days": total.ordinary_in_14_days,
        "not_claimed": [kind.name for kind in PLANTED if kind not in kinds],
        "kinds": {row[0]: {"times": row[1], "in_time": row[2]} for row in rows(total)},
        "wall_s": wall_s,
        "cpu_s": total.seconds,
    }


def print_table(total: Score, wall_s: float) -> None:
    """One row a kind, then what all of them come to."""
    kinds = {kind.name for kind in claimed()}
    table = [_HEAD, *((*row[:-1], row[-1] if row[0] in kinds else "no check yet") for row in rows(total))]
    widths = [max(len(str(row[column])) for row in table) for column in range(len(_HEAD))]
    for row in table:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    told = figures(total, wall_s)
    share, false = told["reported_share"], told["false_alarms_in_14_days"]
    print(
        f"incidents reported within two looks: {100 * share:.1f} % of {told['planted']} in {told['days']:.0f} days;"
        f" goal >= {100 * DETECTION_GOAL:.0f} %: {_met(share >= DETECTION_GOAL)}"
    )
    print(
        f"false alarms in 14 days, all checks together: {false:.2f} ({len(total.false)});"
        f" goal <= {FALSE_ALARM_GOAL:.0f}: {_met(false <= FALSE_ALARM_GOAL)}"
    )
    print(
        f"true findings about ordinary operation in 14 days: {total.ordinary_in_14_days:.2f};"
        f" that came along with an incident: {total.brought}; over before they could be seen: {total.unseen}"
    )
    print(f"{wall_s:.0f} s, {1000 * total.seconds / max(1.0, total.days * 24):.1f} ms of processor time a look")


def print_details(total: Score) -> None:
    """Each miss and each wrong alarm with its facts."""
    print("\nmissed or late:")
    kinds = claimed()
    for one in total.outcomes:
        if not one.is_reported and one.trouble.kind in kinds:
            trouble = one.trouble
            hour = trouble.starts_at / HOUR_S
            late = "never" if one.late_s is None else f"{one.late_s / HOUR_S:.1f} h after it could be seen"
            print(f"  seed {one.seed}, hour {hour:.1f}: {trouble.kind.name} {trouble.words}: {late}")
    print("\nwrong alarms by check:", dict(Counter(alarm.key.partition(":")[0] for _, alarm in total.false)))
    for seed, alarm in total.false:
        print(f"  seed {seed}, hour {alarm.tick}: {alarm.key}: {alarm.text}\n      {alarm.facts}")
    print("\nof ordinary operation:", dict(Counter(f"{kind.name}: {alarm.key}" for _, kind, alarm in total.ordinary)))


def _met(is_met: bool) -> str:
    return "met" if is_met else "NOT MET"
