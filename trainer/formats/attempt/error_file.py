"""A rank's own words on its failure, where torch's elastic launcher has told it to leave them.

Torch writes `{"message": {"message": ..., "extraInfo": {...}}}` when a rank raises, and a text in place of the object
when it could not.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from trainer.core.files import read_plain
from trainer.formats import tolerant
from trainer.formats.json_text import json_line

#: More than any traceback: whoever shares the folder can put anything there.
_LARGEST_BYTES = 1 << 20


class _Words(msgspec.Struct, frozen=True):
    message: str
    extraInfo: dict[str, str] = {}


class _ErrorFile(msgspec.Struct, frozen=True):
    message: _Words | str


def write_error_file(path: Path, message: str, at: float) -> None:
    """Leave `message` as torch does; `at` is in seconds since 1970. Raises OSError."""
    path.write_text(json_line(_ErrorFile(_Words(message, {"timestamp": str(int(at))}))), encoding="utf-8")


def read_error_file(path: Path) -> str:
    """The message, "" when there is none or it is damaged."""
    try:
        found = tolerant.decode(read_plain(path, _LARGEST_BYTES), _ErrorFile)
    except OSError:
        return ""
    if found is None:
        return ""
    return found.message.message if isinstance(found.message, _Words) else found.message
