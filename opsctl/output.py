"""What commands print: data on stdout, messages on stderr, JSON with its schema version."""

from __future__ import annotations

import sys
from typing import Any

SCHEMA_VERSION = 1


def print_json(key: str, value: Any) -> None:
    """Print `json_text(key, value)`."""
    sys.stdout.write(json_text(key, value))


def json_text(key: str, value: Any) -> str:
    """`{"schema_version": 1, key: value}`; an empty list stays `[]`, a time is ISO 8601 with zone.

    value: a msgspec struct or a list of such, of the shape that `opsctl.cli.json_shapes` has for the command and key.
    """
    from trainer.formats.json_text import json_file_text

    return json_file_text({"schema_version": SCHEMA_VERSION, key: value})


def printable(text: str, instead: str = "?") -> str:
    """`text` on one line and without what would steer a terminal: names, messages and logs may hold anything."""
    return "".join(character if character.isprintable() else instead for character in text)


def message(text: str) -> None:
    """A line for the person, not for a pipe: stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
