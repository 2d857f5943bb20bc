"""Amounts for people: powers of ten, three digits and a unit."""

from __future__ import annotations

_BYTES = ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def bytes_words(size_bytes: float) -> str:
    """`18.4 TB`."""
    return _scaled(size_bytes, _BYTES, " ") or f"{size_bytes:.0f} bytes"


def count_words(count: float) -> str:
    """`412`, `1.53M`."""
    return _scaled(count, _COUNTS, "") or f"{count:.0f}"


def _scaled(value: float, units: tuple[tuple[float, str], ...], between: str) -> str:
    for factor, unit in units:
        if abs(value) >= factor:
            return f"{value / factor:.3g}{between}{unit}"
    return ""
