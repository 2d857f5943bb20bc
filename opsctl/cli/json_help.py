"""The shapes of `--json` as a page: `python -m opsctl.cli.json_help > docs/json.md`."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from typing import Any

import msgspec

from opsctl.cli.json_shapes import PRINTED
from opsctl.core.output import show_text

HEAD = """\
# JSON

Made from the structs that the commands print by `python -m opsctl.cli.json_help > docs/json.md`.

With `--json` a command prints one object on stdout: `schema_version` and one more key, whose shape is below. Messages
stay on stderr and exit codes are the same; a command that fails before it has an answer prints nothing. One thing has
one shape wherever it appears.

`schema_version` is 1. While it is, keys may be added, and words to those that a key can be; none is removed or changes
its type, unit or meaning. Read what you know and pass over the rest. `opsctl json-schema [COMMAND]` prints the same as
JSON Schema (draft 2020-12), and `docs/schemas/1.json` is what is held to: what breaks it needs another version.

A key is always there unless it says "may be missing"; null stands only where a type says so, for what is not known or
does not exist. Units are in the names or in the sentence: `_s` seconds, `_minutes` minutes, `_gib` 2^30 bytes, `_gb`
10^9 bytes, `_nats` nats. A time is ISO 8601 with its zone."""

_WORDS: dict[Any, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    datetime: "time",
    Any: "any value",
    type(None): "null",
}


def markdown() -> str:
    """The page: per command its top keys, then every shape once, in the order in which they are met."""
    lines = [HEAD, "", "## Commands", "", "| command | key | shape |", "|---|---|---|"]
    for one in PRINTED:
        when = f", {one.when}" if one.when else ""
        lines.append(f"| `opsctl {one.command}`{when} | `{one.key}` | {type_words(one.shape)} |")
    lines += ["", "## Shapes"]
    for struct in shapes():
        lines += ["", f"### {name_of(struct)}", "", _cell(inspect.cleandoc(struct.__doc__ or "")), ""]
        lines += ["| key | type | |", "|---|---|---|"]
        lines += [f"| `{key}` | {_cell(words)} | {_cell(says)} |" for key, words, says in _rows(struct)]
    return "\n".join(lines)


def shapes(*kinds: Any) -> list[type[msgspec.Struct]]:
    """Every struct in `kinds`, each once, what it holds behind it; without any, of all that commands print."""
    met: dict[type[msgspec.Struct], None] = {}
    for kind in kinds or [one.shape for one in PRINTED]:
        for struct in _structs_in(kind):
            _meet(struct, met)
    return list(met)


def may_be_missing(struct: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> bool:
    """Whether the key is left out where there is nothing to say."""
    return struct.__struct_config__.omit_defaults and not field.required


def name_of(struct: type[msgspec.Struct]) -> str:
    """`RampUp` is "ramp up" on the page, `PrintedJob`, what is printed of a Job, "job"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", struct.__name__.removeprefix("Printed")).lower()


def description_of(field: msgspec.structs.FieldInfo) -> str:
    """The sentence of a field. Raises ValueError when it has none."""
    for meta in getattr(field.type, "__metadata__", ()):
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description
    raise ValueError(f"field {field.name} has no description: Annotated[..., Meta(description=...)]")


def type_words(kind: Any) -> str:
    """A type as the page says it; a struct as a link to its table."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return type_words(inner[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_words(one) for one in inner)
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if origin in (list, tuple):
        return f"list of {type_words(inner[0])}"
    if origin is dict:
        return f"object: key to {type_words(inner[1])}"
    if kind in _WORDS:
        return _WORDS[kind]
    if issubclass(kind, Enum):
        return ", ".join(f"`{one.value}`" for one in kind)
    return f"[{name_of(kind)}](#{name_of(kind).replace(' ', '-')})"


def _rows(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str, str]]:
    for field in msgspec.structs.fields(struct):
        words = type_words(field.type)
        if may_be_missing(struct, field):
            words = words.removesuffix(" or null") + "; may be missing"
        yield field.encode_name, words, description_of(field)


def _meet(struct: type[msgspec.Struct], met: dict[type[msgspec.Struct], None]) -> None:
    if struct in met:
        return
    met[struct] = None
    for field in msgspec.structs.fields(struct):
        for held in _structs_in(field.type):
            _meet(held, met)


def _structs_in(kind: Any) -> Iterator[type[msgspec.Struct]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for inner in typing.get_args(kind):
        yield from _structs_in(inner)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


if __name__ == "__main__":
    show_text(markdown() + "\n")
