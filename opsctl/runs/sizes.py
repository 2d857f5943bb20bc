"""Numbers of bytes as people write them."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([KMGTP]?)(I?)B?", re.IGNORECASE)
_POWERS = "KMGTP"


def bytes_of(text: str) -> int:
    """`200MB` and `200M` are 200 x 10^6, `200MiB` 200 x 2^20. Raises ValueError, one line."""
    match = _SIZE.fullmatch(text.strip())
    size = 0.0
    if match is not None:
        base = 1024 if match[3] else 1000
        size = float(match[1]) * base ** (_POWERS.index(match[2].upper()) + 1 if match[2] else 0)
    if size < 1:
        raise ValueError(f"{text!a} is no size: give a number with its unit, such as 200MB")
    return int(size)
