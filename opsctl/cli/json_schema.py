"""`opsctl json-schema`: what `--json` prints, as JSON Schema. Needs no run and no Slurm."""

from __future__ import annotations

import difflib
import functools
import json
import pkgutil
import typing
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from opsctl.cli import root
from opsctl.cli.long_command import SENT, LongCommand
from opsctl.cli.man import commands_below
from opsctl.cli.selection import JsonOption
from opsctl.core.errors import UsageError
from opsctl.core.output import show_text
from trainer.formats.json_text import SCHEMA_VERSION


@click.command("json-schema")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def command(words: tuple[str, ...]) -> None:
    """Print the JSON Schema (draft 2020-12) of a command's --json, or of all commands.

    Example: `opsctl json-schema checkpoints list`. While schema_version stays the same, keys may be added, but none is
    removed or changed. See docs/json.md.
    """
    show_text(json.dumps(document(_chosen(" ".join(words))), indent=2) + "\n")


class Printed(NamedTuple):
    """A thing that a command prints."""

    command: str  # the words after `opsctl`
    key: str  # the top key, next to schema_version
    shape: Any
    when: str = ""  # what makes the command print this one, if it prints several


@functools.cache
def all_printed() -> tuple[Printed, ...]:
    """Return what every command prints with `--json`."""
    found: dict[Printed, None] = {}
    for words, command in commands_below(("opsctl",), root):
        name = name_in_table(" ".join(words[1:]))
        for option in command.params:
            if isinstance(option, JsonOption):
                sends_itself = isinstance(command, LongCommand) and type(command).send is LongCommand.send
                for key, shape, when in (*option.shapes, *([SENT] if sends_itself else ())):
                    found[Printed(name, key, _resolve(shape), when)] = None
    return tuple(found)


def _resolve(shape: str) -> Any:
    inner = shape.removeprefix("list[").removesuffix("]")
    return pkgutil.resolve_name(inner) if inner == shape else list[pkgutil.resolve_name(inner)]  # type: ignore[misc]


def name_in_table(command: str) -> str:
    """Return the name of a command in `all_printed`: every single check of `watch` has the same."""
    return "watch CHECK" if command.startswith("watch ") and command != "watch all" else command


def _chosen(name: str) -> Sequence[Printed]:
    """Return what `opsctl NAME` prints. Raises UsageError if that has no --json."""
    printed = all_printed()
    chosen = [one for one in printed if not name or one.command == name_in_table(name)]
    if not chosen:
        names = list(dict.fromkeys(one.command for one in printed))
        near = [one for one in names if one.startswith(f"{name} ")] or difflib.get_close_matches(name, names, 3)
        hint = f"; there is {', '.join(near)}" if near else "; docs/json.md lists those that do"
        raise UsageError(f"no command {name!r} prints JSON{hint}")
    return chosen


def document(printed: Sequence[Printed]) -> dict[str, Any]:
    """Return a schema with one alternative for each of `printed`, and every shape once under `$defs`."""
    kinds = [one.shape for one in printed]
    schemas, defined = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for struct in shapes(kinds):
        _describe_output(defined[struct.__name__], struct)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"What opsctl prints with --json, schema_version {SCHEMA_VERSION}",
        "anyOf": [
            {
                "title": " ".join(filter(None, ("opsctl", one.command, one.when))),
                "type": "object",
                "properties": {"schema_version": {"const": SCHEMA_VERSION}, one.key: schema},
                "required": ["schema_version", one.key],
            }
            for one, schema in zip(printed, schemas, strict=True)
        ],
        "$defs": defined,
    }


def _describe_output(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Change a schema of what msgspec reads into one of what it prints: a default is always printed or never."""
    fields = msgspec.structs.fields(struct)
    schema["required"] = [field.encode_name for field in fields if not may_be_missing(struct, field)]
    for field in fields:
        value = schema["properties"][field.encode_name]
        value.pop("default", None)
        if not may_be_missing(struct, field) or "anyOf" not in value:
            continue
        value["anyOf"] = [one for one in value["anyOf"] if one != {"type": "null"}]
        if len(value["anyOf"]) == 1:
            value.update(value.pop("anyOf")[0])


def may_be_missing(struct: type[msgspec.Struct], field: msgspec.structs.FieldInfo) -> bool:
    """Return True if the key is left out when there is nothing to report."""
    return struct.__struct_config__.omit_defaults and not field.required


def shapes(kinds: Iterable[Any]) -> list[type[msgspec.Struct]]:
    """Return every struct in `kinds` once, each followed by those in its fields."""
    found: dict[type[msgspec.Struct], None] = {}

    def visit(kind: Any) -> None:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in found:
            found[kind] = None
            for field in msgspec.structs.fields(kind):
                visit(field.type)
        for inner in typing.get_args(kind):
            visit(inner)

    for kind in kinds:
        visit(kind)
    return list(found)
