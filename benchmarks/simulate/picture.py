"""The comparison as one SVG: goodput by size for each way, and what each decision is worth. Pure; plain text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.simulate.experiments import Between

_WIDTH, _PANEL, _HEIGHT, _TOP, _LEFT = 1000, 400, 250, 50, 60
_COLOURS = ("#1b6ca8", "#c8553d", "#e0a030", "#6a994e", "#8d5fa8")  # told apart by most, and by their marks
#: From a mark's middle: a square, a diamond, a triangle up, a triangle down. The first curve's is a circle.
_MARKS = ("m-4,-4 h8 v8 h-8 z", "m0,-6 l5,6 -5,6 -5,-6 z", "m0,-5 l5,9 h-10 z", "m0,5 l5,-9 h-10 z")
_ROW = 22


@dataclass(frozen=True)
class Curve:
    """One way's goodput by the number of nodes."""

    name: str
    points: Sequence[tuple[int, Between]]


@dataclass(frozen=True)
class Bars:
    """The value of each decision: a share of the wall time."""

    title: str
    rows: Sequence[tuple[str, Between]]


def drawn(panels: Mapping[str, Sequence[Curve]], bars: Sequence[Bars]) -> str:
    """The picture; panels by the setting's name."""
    most_rows = max((len(one.rows) for one in bars), default=0)
    height = _TOP + _HEIGHT + 110 + most_rows * _ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        'font-size="13" role="img" aria-label="Goodput by nodes and way, and what each decision is worth">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, (title, curves) in enumerate(panels.items()):
        parts += _panel(_LEFT + number * (_PANEL + 90), title, curves, number == 0)
    for number, one in enumerate(bars):
        parts += _bars(number * _WIDTH // 2, _TOP + _HEIGHT + 80, one)
    return "\n".join((*parts, "</svg>")) + "\n"


def _text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0) -> str:
    place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {place} stroke="{colour}" stroke-width="{width}"/>'


def _panel(left: float, title: str, curves: Sequence[Curve], with_legend: bool) -> list[str]:
    sizes = sorted({nodes for curve in curves for nodes, _ in curve.points})
    low, high = math.log(sizes[0]), math.log(sizes[-1])

    def across(nodes: int) -> float:
        return left + _PANEL * (math.log(nodes) - low) / ((high - low) or 1.0)

    def down(share: float) -> float:
        return _TOP + _HEIGHT * (1.0 - min(1.0, max(0.0, share)))

    parts = [_text(left + _PANEL / 2, _TOP - 20, f"goodput, {title}", more=' font-weight="bold"')]
    for tenth in range(0, 11, 2):
        parts.append(_line(left, down(tenth / 10), left + _PANEL, down(tenth / 10), "#dddddd"))
        parts.append(_text(left - 8, down(tenth / 10) + 4, f"{10 * tenth} %", "end"))
    parts += [_text(across(nodes), _TOP + _HEIGHT + 20, f"{nodes:,}") for nodes in sizes]
    parts.append(_text(left + _PANEL / 2, _TOP + _HEIGHT + 40, "nodes"))
    for number, curve in enumerate(curves):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [(across(nodes), down(one.middle)) for nodes, one in curve.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        for (x, y), (_, one) in zip(points, curve.points, strict=True):
            half = one.half or 0.0
            parts.append(_line(x, down(one.middle - half), x, down(one.middle + half), colour, 1.5))
            parts.append(_mark(number, x, y, colour))
        if with_legend:
            y = _TOP + _HEIGHT - 20 * (len(curves) - number)
            parts += [_mark(number, left + 16, y - 4, colour), _text(left + 28, y, curve.name, "start")]
    return parts


def _mark(number: int, x: float, y: float, colour: str) -> str:
    if number == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'
    return f'<path d="M{x:.1f},{y:.1f} {_MARKS[(number - 1) % len(_MARKS)]}" fill="{colour}"/>'


def _bars(left: float, top: float, bars: Bars) -> list[str]:
    middle, span = left + 240, 230
    most = max((abs(one.middle) + (one.half or 0.0) for _, one in bars.rows), default=0.0) or 1.0
    parts = [_text(left + _WIDTH / 4, top, bars.title, more=' font-weight="bold"')]
    zero = middle + span * 0.15
    scale = (span * 0.85) / most
    for number, (name, one) in enumerate(bars.rows):
        y, half = top + 22 + number * _ROW, one.half or 0.0
        end = zero + max(-0.15 * span, one.middle * scale)
        x, wide = min(zero, end), abs(end - zero)
        parts.append(_text(middle - 50, y + 4, name, "end"))
        parts.append(f'<rect x="{x:.1f}" y="{y - 7:.1f}" width="{wide:.1f}" height="14" fill="{_COLOURS[0]}"/>')
        ends = zero + max(-0.15 * span, (one.middle - half) * scale), zero + (one.middle + half) * scale
        parts.append(_line(ends[0], y, ends[1], y, "#333333", 1.5))
        parts.append(_text(middle - 44, y + 4, f"{100 * one.middle:+.1f}", "start", ' font-size="11"'))
    parts.append(_line(zero, top + 8, zero, top + 14 + len(bars.rows) * _ROW, "#333333"))
    return parts
