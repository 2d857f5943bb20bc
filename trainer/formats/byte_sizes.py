"""Sizes in bytes, with units."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(?:B|([KMGTP])(I?)B?)", re.IGNORECASE)
_POWERS = "KMGTP"


def size_in_bytes(text: str) -> int:
    """Parse a size: `5GB` and `5G` are 5 x 10^9, `5GiB` 5 x 2^30. Raises ValueError, one line."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!a} is not a size: give a number with its unit, e.g. 5GB or 500MiB")
    power = _POWERS.index(match[2].upper()) + 1 if match[2] else 0
    size = int(float(match[1]) * (1024 if match[3] else 1000) ** power)
    if size < 1:
        raise ValueError(f"{text!a} is not above 0: give a larger size")
    return size
