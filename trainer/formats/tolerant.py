"""Decoding JSON that a crash may have cut short or anybody may have edited: what fits is taken, the rest passed over.

For files that must never keep a command from working. What must be whole to be believed (a manifest, a revision) is
decoded strictly where it is read.
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
    """The JSON text `data` as a `kind` (a msgspec struct, or a list or dict of such); None where nothing fits."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError):
        pass
    try:
        # Python's own reader, for it also takes half a surrogate pair: so it writes names that are no UTF-8.
        return convert(json.loads(data), kind)
    except (ValueError, RecursionError):
        return None


def convert(value: Any, kind: type[T]) -> T | None:
    """A decoded JSON value as a `kind`.

    A field whose value does not fit takes its default, an item of a list that does not fit is left out; a struct that
    lacks a field without default is None, and unknown fields are passed over.
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
    """`found`, unless it breaks what the annotation of `kind` asks for."""
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
