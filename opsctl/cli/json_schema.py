"""`opsctl json-schema`: what `--json` prints, as JSON Schema. Needs no run and no Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import msgspec

    from opsctl.cli.json_shapes import Printed

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REFERENCES = "#/$defs/{name}"


@click.command("json-schema")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def command(words: tuple[str, ...]) -> None:
    """What a command prints with --json, as JSON Schema (draft 2020-12); without one, what all of them print.

    `opsctl json-schema checkpoints list`. While schema_version is the same, keys are added and none is removed or
    changed: docs/json.md says the rest.
    """
    import json

    from opsctl.cli.json_shapes import PRINTED
    from opsctl.core.output import show_text

    show_text(json.dumps(document(_chosen(" ".join(words), PRINTED)), indent=2) + "\n")


def _chosen(name: str, printed: Sequence[Printed]) -> Sequence[Printed]:
    """What `opsctl NAME` prints. Raises UsageError where that has no --json."""
    import difflib

    from opsctl.cli.json_shapes import name_in_table
    from opsctl.core.errors import UsageError

    chosen = [one for one in printed if not name or one.command == name_in_table(name)]
    if not chosen:
        names = list(dict.fromkeys(one.command for one in printed))
        near = [one for one in names if one.startswith(f"{name} ")] or difflib.get_close_matches(name, names, 3)
        hint = f"; there is {', '.join(near)}" if near else "; docs/json.md lists those that do"
        raise UsageError(f"no command {name!r} prints JSON{hint}")
    return chosen


def document(printed: Sequence[Printed]) -> dict[str, Any]:
    """One schema that whatever these print fits: an alternative for each of them, every shape under `$defs` once."""
    import msgspec

    from opsctl.cli.json_help import shapes
    from trainer.formats.json_text import SCHEMA_VERSION

    kinds = [one.shape for one in printed]
    inner, defined = msgspec.json.schema_components(kinds, ref_template=_REFERENCES)
    for struct in shapes(*kinds):
        _as_printed(defined[struct.__name__], struct)
    return {
        "$schema": DIALECT,
        "title": f"What opsctl prints with --json, schema_version {SCHEMA_VERSION}",
        "anyOf": [_alternative(one, schema, SCHEMA_VERSION) for one, schema in zip(printed, inner, strict=True)],
        "$defs": defined,
    }


def _alternative(printed: Printed, schema: dict[str, Any], version: int) -> dict[str, Any]:
    return {
        "title": " ".join(filter(None, ("opsctl", printed.command, printed.when))),
        "type": "object",
        "properties": {"schema_version": {"const": version}, printed.key: schema},
        "required": ["schema_version", printed.key],
    }


def _as_printed(schema: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    """Say of a struct what is printed, where msgspec says what it would read: defaults are always printed or never."""
    import msgspec

    from opsctl.cli.json_help import may_be_missing

    fields = msgspec.structs.fields(struct)
    schema["required"] = [field.encode_name for field in fields if not may_be_missing(struct, field)]
    for field in fields:
        value = schema["properties"][field.encode_name]
        value.pop("default", None)
        if may_be_missing(struct, field):
            _without_null(value)


def _without_null(value: dict[str, Any]) -> None:
    """What may be missing is never null instead."""
    left = [one for one in value.get("anyOf", ()) if one != {"type": "null"}]
    if len(left) == 1:
        del value["anyOf"]
        value.update(left[0])
    elif left:
        value["anyOf"] = left
