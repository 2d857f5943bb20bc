"""Structs as JSON text on disk, for both packages. Times are ISO 8601 with their zone."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import msgspec

#: A time with its zone: nodes of one training may have different zones.
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
#: The schema version of `--json`. It increases when a key is removed or changes its type, unit or meaning.
SCHEMA_VERSION = 1


def json_line(value: Any) -> str:
    """Return a struct, or a container of structs, as one line of JSON. Names that are not UTF-8 are preserved."""
    return json.dumps(plain(value))


def json_file_text(value: Any) -> str:
    """Return the same JSON as `json_line`, indented, with a final newline."""
    return json.dumps(plain(value), indent=2) + "\n"


def printed_json_text(key: str, value: Any, **beside: Any) -> str:
    """Return the output of a program with `--json`: its schema version, `value` under `key`, and other keys."""
    return json_file_text({"schema_version": SCHEMA_VERSION, key: value, **beside})


def plain(value: Any) -> Any:
    """Return `value` as dicts, lists, texts, numbers, booleans and None."""
    return _with_written_moments(msgspec.to_builtins(value, builtin_types=(datetime,)))


def _with_written_moments(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds" if value.microsecond else "seconds")
    if isinstance(value, list | tuple):
        return [_with_written_moments(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_written_moments(item) for key, item in value.items()}
    return value
