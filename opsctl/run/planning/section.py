"""One section of a plan: its JSON values, and its rows for a terminal of about 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from opsctl.core.output import table_lines


@dataclass(frozen=True)
class Section:
    """A section. `values` go into the plan's JSON under `key`; `rows` are (label, text), `table` the rows of a table.

    `key` is the field of `plan.RunPlan` or `plan.NumbersPlan` that takes `values`.
    """

    key: str
    title: str
    values: Struct
    rows: tuple[tuple[str, str], ...] = ()
    table: tuple[tuple[str, ...], ...] = field(default=())  # the first row is the heading
    note: str = ""


def whole(number: float) -> str:
    """Format a whole number: `1,234,567`."""
    return f"{number:,.0f}"


def billions(number: float) -> str:
    """Format a count of parameters or tokens: `176.25B`, `13.5M`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.5g}{letter}"
    return f"{number:g}"


def gib_text(gib: float) -> str:
    """Format GiB, as MiB or TiB if that is more readable."""
    if gib < 0.1:
        return f"{gib * 1024:,.2f} MiB"
    return f"{gib / 1024:,.2f} TiB" if gib >= 10 * 1024 else f"{gib:,.2f} GiB"


def gb_text(gb: float) -> str:
    """Format GB (10^9 bytes), as MB if that is more readable."""
    return f"{gb * 1e3:,.2f} MB" if gb < 0.1 else f"{gb:,.2f} GB"


def amount(number: float, digits: int = 2) -> str:
    """Format a quantity with `digits` decimals, and with more if it is small."""
    if number and abs(number) < 10**-digits:
        return f"{number:.2g}"
    return f"{number:,.{digits}f}"


_LABEL_WIDTH = 26
_WIDTH = 100


def lines_of(sections: Sequence[Section]) -> Iterator[str]:
    """Yield the lines of the report, with a blank line between sections."""
    for position, section in enumerate(sections):
        if not section.rows and not section.table:
            continue
        if position:
            yield ""
        yield section.title
        for label, text in section.rows:
            yield from _row(label, text)
        if section.table:
            yield from _table(section.table)
        if section.note:
            yield from textwrap.wrap(section.note, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def bullet_lines(title: str, texts: Sequence[str]) -> Iterator[str]:
    """Yield a title and one line per text; nothing without texts."""
    if texts:
        yield ""
        yield title
        yield from (f"  {text}" for text in texts)


def _row(label: str, text: str) -> Iterator[str]:
    indent = " " * (_LABEL_WIDTH + 2)
    wrapped = textwrap.wrap(text, _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False) or [""]
    yield f"  {label:<{_LABEL_WIDTH - 2}}  {wrapped[0]}"
    yield from (indent + line for line in wrapped[1:])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from (f"  {line}" for line in table_lines(rows, ">"))
