"""What commands print: data on stdout, messages on stderr, JSON with its schema version."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from opsctl.moments import iso

SCHEMA_VERSION = 1


def print_json(key: str, value: Any) -> None:
    """Print `json_text(key, value)`."""
    sys.stdout.write(json_text(key, value) + "\n")


def json_text(key: str, value: Any) -> str:
    """`{"schema_version": 1, key: value}`; an empty list stays `[]`, a time is ISO 8601 with zone, to the second.

    value: a msgspec struct or a list of such, of the shape that `opsctl.cli.json_shapes` has for the command and key.
    """
    import msgspec

    # Not msgspec's own encoder: a path may hold bytes that are no UTF-8.
    plain = msgspec.to_builtins(value, builtin_types=(datetime,))
    return json.dumps({"schema_version": SCHEMA_VERSION, key: plain}, indent=2, default=iso)


def printable(text: str, instead: str = "?") -> str:
    """`text` on one line and without what would steer a terminal: names, messages and logs may hold anything."""
    return "".join(character if character.isprintable() else instead for character in text)


def message(text: str) -> None:
    """A line for the person, not for a pipe: stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
