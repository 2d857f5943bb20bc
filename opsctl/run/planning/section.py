"""One part of a plan: what JSON gets and what a person sees, side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import Struct


@dataclass(frozen=True)
class Section:
    """`values` go into the plan's JSON under `key`; `rows` are (label, text) on the screen, `table` a table's rows.

    `key` is the field of `plan.RunPlan` or `plan.NumbersPlan` that takes `values`.
    """

    key: str
    title: str
    values: Struct
    rows: tuple[tuple[str, str], ...] = ()
    table: tuple[tuple[str, ...], ...] = field(default=())  # the first row is the heading
    note: str = ""


def whole(number: float) -> str:
    """`1,234,567`."""
    return f"{number:,.0f}"


def billions(number: float) -> str:
    """A count of parameters or tokens in the unit people use: `176.25B`, `13.5M`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.5g}{letter}"
    return f"{number:g}"


def gib_text(gib: float) -> str:
    """GiB, or MiB or TiB where those read better."""
    if gib < 0.1:
        return f"{gib * 1024:,.2f} MiB"
    return f"{gib / 1024:,.2f} TiB" if gib >= 10 * 1024 else f"{gib:,.2f} GiB"


def gb_text(gb: float) -> str:
    """GB (10^9 bytes), or MB where that reads better."""
    return f"{gb * 1e3:,.2f} MB" if gb < 0.1 else f"{gb:,.2f} GB"


def amount(number: float, digits: int = 2) -> str:
    """A measured quantity with `digits` decimals, more where it is small."""
    if number and abs(number) < 10**-digits:
        return f"{number:.2g}"
    return f"{number:,.{digits}f}"
