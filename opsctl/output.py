"""What commands print: data on stdout, messages on stderr, JSON with its schema version."""

from __future__ import annotations

import json
import sys
from typing import Any

SCHEMA_VERSION = 1


def print_json(key: str, value: Any) -> None:
    """Print `{"schema_version": 1, key: value}`; an empty list stays `[]`."""
    sys.stdout.write(json.dumps({"schema_version": SCHEMA_VERSION, key: value}, indent=2, default=str) + "\n")


def printable(text: str, instead: str = "?") -> str:
    """`text` on one line and without what would steer a terminal: names, messages and logs may hold anything."""
    return "".join(character if character.isprintable() else instead for character in text)


def message(text: str) -> None:
    """A line for the person, not for a pipe: stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
