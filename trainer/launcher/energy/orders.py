"""What a rank tells its node's tracker: at the start, on its command line, and later, in words of one line."""

from __future__ import annotations

import msgspec

from trainer.formats.json_text import json_line

FLUSH, STOP = b"flush\n", b"stop\n"


class Order(msgspec.Struct, frozen=True):
    """What is to be measured, and where it is written."""

    folder: str  # is there
    country: str | None = None  # ISO 3166, three letters
    region: str | None = None  # as codecarbon names it
    intensity_g_per_kwh: float | None = None  # in place of what the country has
    measure_s: float = 15.0  # between two measurements
    write_s: float = 60.0  # between two totals on disk, where nobody asks sooner


def order_line(order: Order) -> str:
    """One argument of a command line."""
    return json_line(order)


def read_order(argument: str) -> Order:
    """What `order_line` has written."""
    return msgspec.json.decode(argument, type=Order)
