"""Whether what `--json` prints is still what it was promised to be, and the schemas on record that it is held to.

`python -m opsctl.cli.json_promise docs/schemas` writes what is printed now as `docs/schemas/VERSION.json`, and refuses
where that would break what the file there promises.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from opsctl.cli.json_schema import document
from opsctl.cli.json_shapes import PRINTED
from opsctl.core.output import message
from trainer.formats.json_text import SCHEMA_VERSION

#: What a schema says for people only.
_WORDS = ("title", "description")
#: What is compared by itself.
_PARTS = ("properties", "required", "enum", "items", "additionalProperties", "anyOf")


def broken(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What a reader who knows the document `before` would miss or misread in what `now` describes; [] for nothing.

    Keys, further words of an enumeration and further commands may be added. What is always there stays so; what may be
    missing may come to be always there. How a shape is called does not matter, only what is in it.
    """
    there = {_place(one): one for one in now["anyOf"]}
    found: list[str] = []
    for one in before["anyOf"]:
        place = _place(one)
        if place not in there:
            found.append(f"{place}: is no longer printed")
            continue
        found += _broken(one, there[place], _Pair(before["$defs"], now["$defs"]), place)
    return list(dict.fromkeys(found))


def _place(alternative: dict[str, Any]) -> str:
    (key,) = (name for name in alternative["properties"] if name != "schema_version")
    return f"{alternative['title']}: {key}"


class _Pair:
    """The shapes of two documents, and which of them were compared with which."""

    def __init__(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        self._shapes = (before, now)
        self._met: set[tuple[str, str]] = set()

    def resolved(self, before: dict[str, Any], now: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Both without references; None for two shapes that were compared already."""
        names = before.get("$ref", ""), now.get("$ref", "")
        if all(names):
            if names in self._met:
                return None
            self._met.add(names)
        first, second = (
            shapes[name.rpartition("/")[2]] if name else schema
            for schema, name, shapes in zip((before, now), names, self._shapes, strict=True)
        )
        return first, second


def _broken(before: dict[str, Any], now: dict[str, Any], pair: _Pair, place: str) -> Iterator[str]:
    both = pair.resolved(before, now)
    if both is None:
        return
    before, now = both
    if _rest(before) != _rest(now):
        yield f"{place}: was {json.dumps(_rest(before))}, is {json.dumps(_rest(now))}"
        return
    if lost := [word for word in before.get("enum", ()) if word not in now.get("enum", ())]:
        yield f"{place}: can no longer be {', '.join(map(str, lost))}"
    for key, schema in before.get("properties", {}).items():
        if key not in now.get("properties", {}):
            yield f"{place}.{key}: is gone"
        elif key in before["required"] and key not in now["required"]:
            yield f"{place}.{key}: was always there, may be missing"
        else:
            yield from _broken(schema, now["properties"][key], pair, f"{place}.{key}")
    for part in ("items", "additionalProperties"):
        if part in before:
            yield from _broken(before[part], now[part], pair, f"{place}[]")
    yield from _broken_choice(before.get("anyOf", []), now.get("anyOf", []), pair, place)


def _broken_choice(
    before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]], pair: _Pair, place: str
) -> Iterator[str]:
    """Alternatives are compared in their order; one more is something that a reader does not know."""
    if len(before) != len(now):
        yield f"{place}: was one of {len(before)} types, is one of {len(now)}"
        return
    for one, other in zip(before, now, strict=True):
        yield from _broken(one, other, pair, place)


def _rest(schema: dict[str, Any]) -> dict[str, Any]:
    """What has to be the same: types, formats, constants, and which of the parts there are."""
    kept = {key: value for key, value in schema.items() if key not in (*_WORDS, *_PARTS)}
    return {**kept, **{part: True for part in _PARTS if part in schema}}


def record(folder: Path) -> Path:
    """The file that has what is printed under today's schema_version."""
    return folder / f"{SCHEMA_VERSION}.json"


def main(folder: Path) -> int:
    """Write the record anew, unless that breaks it. Returns the exit code."""
    path, now = record(folder), document(PRINTED)
    if path.exists() and (found := broken(json.loads(path.read_text()), now)):
        for line in found:
            message(line)
        message(f"{path} promises otherwise: leave what was, or raise SCHEMA_VERSION in trainer/formats/json_text.py")
        return 1
    path.write_text(text_of(now))
    return 0


def text_of(schema: dict[str, Any]) -> str:
    """The record's text: what is promised, without the sentences that people read."""
    defined = {name: _without_words(one) for name, one in sorted(schema["$defs"].items())}
    return json.dumps({**schema, "$defs": defined}, indent=1) + "\n"


def _without_words(schema: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: _without_words(one) for name, one in value.items()}
        elif key == "anyOf":
            kept[key] = [_without_words(one) for one in value]
        elif key in ("items", "additionalProperties"):
            kept[key] = _without_words(value)
        elif key not in _WORDS:
            kept[key] = value
    return kept


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
