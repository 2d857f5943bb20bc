"""Structs as the JSON text that both packages leave on disk. Moments are ISO 8601 with their zone."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

import msgspec

#: A moment that says its zone: nodes of one training may be set to different ones.
Moment = Annotated[datetime, msgspec.Meta(tz=True)]
#: Of what is printed with `--json`: raised where a key is removed or changes its type, unit or meaning.
SCHEMA_VERSION = 1


def json_line(value: Any) -> str:
    """A struct, or anything made of such, as one line of JSON. A name that is no UTF-8 comes back as it was."""
    return json.dumps(plain(value))


def json_file_text(value: Any) -> str:
    """What `json_line` says, indented for people, with a final newline."""
    return json.dumps(plain(value), indent=2) + "\n"


def printed_json_text(key: str, value: Any, **beside: Any) -> str:
    """What a program prints with `--json`: its schema version, and `value` under `key`, and what is beside it."""
    return json_file_text({"schema_version": SCHEMA_VERSION, key: value, **beside})


def plain(value: Any) -> Any:
    """`value` as dicts, lists, texts, numbers, booleans and None."""
    return _with_written_moments(msgspec.to_builtins(value, builtin_types=(datetime,)))


def _with_written_moments(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds" if value.microsecond else "seconds")
    if isinstance(value, list | tuple):
        return [_with_written_moments(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_written_moments(item) for key, item in value.items()}
    return value
