"""Words, colours and small drawings of the screens. Pure."""

from __future__ import annotations

from collections.abc import Sequence

GREEN, YELLOW, RED, BOLD = "32", "33", "31", "1"
#: Of states that are as they should be, or on their way; any other is red.
STATE_COLOURS = {
    "running": GREEN,
    "configuring": GREEN,
    "completing": GREEN,
    "finished": GREEN,
    "waiting": YELLOW,
    "unsubmitted": YELLOW,
}


def paint(text: str, code: str, colour: bool) -> str:
    """Return `text`, on a terminal with `colour` in the color of the SGR code."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


_MINUTE, _HOUR, _DAY = 60, 3600, 86400
#: Seconds from which on the age of an answer is shown.
_OLD_S = 5.0


def answer_age(age_s: float) -> str:
    """Return how old Slurm's answer about the queue is, as a line of a screen; empty for one of now."""
    return f"Slurm's answer is {age_s:.0f} s old" if age_s > _OLD_S else ""


BARS = "▁▂▃▄▅▆▇█"
FULL, EMPTY = "█", "░"
#: So much of the values at either end does not set the scale: a start's loss would flatten all that comes after it.
_OUTSIDE = 0.03


def sparks(values: Sequence[float | None], width: int) -> str:
    """Draw the values, oldest first, as at most `width` bars; a blank for unknown ones. Empty if none is known.

    Each bar is a mean over equally many values; the lowest is the smallest value. Values at the outer 3 % of either end
    are drawn as the ends of the scale.
    """
    return tall_sparks(values, width, 1)[0]


def tall_sparks(values: Sequence[float | None], width: int, height: int) -> list[str]:
    """Draw the bars of `sparks` over `height` lines, the top line first."""
    columns = _columns(values, width)
    known = sorted(one for one in columns if one is not None)
    if not known:
        return [""] * height
    outside = int(_OUTSIDE * len(known))
    low, high = known[outside], known[-1 - outside]
    bars = ["".ljust(height) if one is None else _bar(one, low, high, height) for one in columns]
    return ["".join(line) for line in zip(*bars, strict=True)][::-1]


def progress_bar(share: float, width: int) -> str:
    """Draw `share` as `width` characters: the last one is full only at 1."""
    full = int(min(1.0, max(0.0, share)) * width)
    return FULL * full + EMPTY * (width - full)


def _columns(values: Sequence[float | None], width: int) -> list[float | None]:
    count = min(len(values), max(0, width))
    return [
        _mean(values[number * len(values) // count : (number + 1) * len(values) // count]) for number in range(count)
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _bar(value: float, low: float, high: float, height: int) -> str:
    """Return the characters of a bar, from the bottom up."""
    levels = height * len(BARS)
    share = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5
    level = min(levels - 1, int(share * levels)) + 1  # at least one
    full, rest = divmod(level, len(BARS))
    return (BARS[-1] * full + (BARS[rest - 1] if rest else "")).ljust(height)
