"""Who is off among many that should be alike. Pure; distances in the logarithm, so that twice and half are as far."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

#: A median absolute deviation as a standard deviation of normal numbers (Rousseeuw and Croux 1993).
_NORMAL = 1.4826
#: Measurements are no better than this, however well most agree, as a share.
_FLOOR = 0.005
#: A few values that agree say little about how much such values differ: this share, divided by their number, more.
_FEW = 0.3


def slowness(value: float, usual: float, more_is_better: bool) -> float:
    """How many times slower than `usual`: above 1 is slower. A value of nothing is slow without end."""
    if value <= 0 or usual <= 0 or not math.isfinite(value):
        return math.inf if value <= 0 < usual or not math.isfinite(value) else 1.0
    return usual / value if more_is_better else value / usual


def usual_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """(the median, the robust standard deviation of the logarithm from it). What is not above 0 does not count."""
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    if not logs:
        return 0.0, math.inf
    middle = statistics.median(logs)
    deviation = _NORMAL * statistics.median(abs(one - middle) for one in logs)
    return math.exp(middle), max(deviation, _FLOOR + _FEW / len(logs))


def deviations(slow: float, deviation: float) -> float:
    """By how many deviations a slowness is off; negative for what is faster than usual."""
    return math.log(slow) / deviation if math.isfinite(slow) else math.inf


def minority(texts: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """(what most have, name -> text of those who have another); nobody is in the minority where no text has a half."""
    if not texts:
        return "", {}
    most = statistics.mode(sorted(texts.values()))
    having = sum(text == most for text in texts.values())
    if 2 * having <= len(texts):
        return "", {}
    return most, {name: text for name, text in texts.items() if text != most}
