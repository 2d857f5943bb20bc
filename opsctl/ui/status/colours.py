"""What colours say on a terminal, as SGR codes. Pure."""

from __future__ import annotations

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
    """`text`, on a terminal with `colour` as the SGR code says."""
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text
