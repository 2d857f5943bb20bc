"""Tolerant decoding of JSON that may be truncated or edited: values that fit are used, the others skipped.

It is for files that must never stop a command. Files that must be valid as a whole (a manifest, a revision) are
decoded strictly by their own readers.
"""

from __future__ import annotations

import json
import types
import typing
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_UNFIT: Any = object()


def decode(data: bytes | str, kind: type[T]) -> T | None:
    """Decode JSON as a `kind` (a msgspec struct, or a list or dict of them); None if nothing fits."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        # Python's own decoder also accepts unpaired surrogates, with which it writes names that are not UTF-8.
        return convert(json.loads(data), kind)
    except (ValueError, RecursionError):
        return None


def convert(value: Any, kind: type[T]) -> T | None:
    """Convert a decoded JSON value to a `kind`.

    A field with an unsuitable value gets its default, and unsuitable items of a list are dropped. A struct that lacks
    a field without default is None. Unknown fields are ignored.
    """
    found = _fitted(value, kind)
    return None if found is _UNFIT else found


def _fitted(value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError, RecursionError):
        pass
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _constrained(_fitted(value, inner[0]), kind)
    if origin in (typing.Union, types.UnionType):
        return next((found for one in inner if (found := _fitted(value, one)) is not _UNFIT), _UNFIT)
    if origin in (list, tuple) and isinstance(value, list):
        items = [found for item in value if (found := _fitted(item, inner[0])) is not _UNFIT]
        return origin(items)
    if origin is dict and isinstance(value, dict):
        return {key: found for key, item in value.items() if (found := _fitted(item, inner[1])) is not _UNFIT}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        return _fitted_struct(value, kind)
    return _UNFIT


def _constrained(found: Any, kind: Any) -> Any:
    """Return `found` if it meets the constraints in the annotation of `kind`."""
    try:
        return msgspec.convert(found, kind)
    except (msgspec.ValidationError, ValueError):
        return _UNFIT


def _fitted_struct(value: dict[str, Any], kind: type[msgspec.Struct]) -> Any:
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        found = _fitted(value[field.encode_name], field.type) if field.encode_name in value else _UNFIT
        if found is not _UNFIT:
            fields[field.name] = found
        elif field.required:
            return _UNFIT
    return kind(**fields)
