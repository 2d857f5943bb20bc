"""Outcomes as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.simulate.experiments import Between, Summary
from opsctl.diagnosis.goodput.account import Part

#: What is told of the time that did not train.
PARTS = ("slowed", Part.LOST, Part.STARTED, Part.SAVED, Part.EVALUATED, Part.WAITED, Part.IDLE)


def percent(one: Between, signed: bool = False) -> str:
    """`91.2 ± 0.4`."""
    sign = "+" if signed else ""
    half = "" if one.half is None else f" ± {100 * one.half:.1f}"
    return f"{100 * one.middle:{sign}.1f}{half}"


def rows(found: Mapping[str, Summary]) -> list[tuple[str, ...]]:
    """A head, then a row for each way: goodput, of the node hours, and where the rest went."""
    head = ("way", "goodput, %", "of node hours, %", *(str(part) for part in PARTS))
    body = (
        (
            name,
            percent(one.goodput),
            percent(one.of_node_hours),
            *(f"{100 * one.share(str(part)):.1f}" for part in PARTS),
        )
        for name, one in found.items()
    )
    return [head, *body]


def table(found: Mapping[str, Summary]) -> str:
    """For a terminal."""
    lines = rows(found)
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
    )


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table; the first line is its head."""
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join((head, "|---" * len(lines[0]) + "|", *body))
