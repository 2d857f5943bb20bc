"""Test what was promised of `--json` is kept while schema_version is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from opsctl.cli.json_schema import Printed, all_printed
from release import json_fields
from release.json_fields import RECORD, broken, lines_of, main


def test_the_record_has_what_is_printed_today() -> None:
    recorded = RECORD.read_text().splitlines()
    assert recorded == lines_of(all_printed()), "write it again: python -m release.json_fields"


class Inner(msgspec.Struct):
    """Held by another."""

    size_gib: float
    name: str | None


class Shape(msgspec.Struct):
    """Printed by a command."""

    number: int
    word: Literal["a", "b b"]
    held: list[Inner]
    by_name: dict[str, Inner]


def record(shape: Any, command: str = "one") -> list[str]:
    return lines_of([Printed(command, "key", shape)])


def changed(bases: type[msgspec.Struct] = Shape, *, omit_defaults: bool = False, **fields: Any) -> type[msgspec.Struct]:
    """`bases` with some fields of other types, None for one that is gone, a pair for one with a default."""
    kept = {field.name: field.type for field in msgspec.structs.fields(bases)} | fields
    given = [(name, *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in kept.items() if kind is not None]
    return msgspec.defstruct(bases.__name__, given, omit_defaults=omit_defaults, kw_only=True)


def test_more_keys_and_more_words_and_a_key_that_comes_to_be_always_there_keep_the_promise() -> None:
    longer = changed(Inner, more=int)
    now = changed(word=Literal["a", "c", "b b"], held=list[longer], by_name=dict[str, longer], further=str)  # type: ignore[valid-type]
    assert broken(record(Shape), record(now)) == []
    assert broken(record(changed(number=(int, 0), omit_defaults=True)), record(Shape)) == []


@pytest.mark.parametrize(
    ("now", "where"),
    [
        (changed(number=None), "shape.number: "),
        (changed(number=str), "shape.number: "),
        (changed(number=int | None), "shape.number: "),
        (changed(number=(int, 0), omit_defaults=True), "shape.number: "),
        (changed(word=Literal["a"]), "shape.word: "),
        (changed(word=str), "shape.word: "),
        (changed(held=list[changed(Inner, size_gib=None)], by_name=dict[str, Any]), "inner.size_gib: "),  # type: ignore[misc]
        (changed(held=list[changed(Inner, name=str)], by_name=dict[str, Any]), "inner.name: "),  # type: ignore[misc]
        (list[Shape], "one: key: "),
    ],
    ids=str,
)
def test_what_a_reader_would_miss_or_misread_breaks_it(now: Any, where: str) -> None:
    assert where in "".join(one[: len(where)] for one in broken(record(Shape), record(now)))


def test_a_command_that_prints_it_no_longer_breaks_it() -> None:
    (found,) = broken(record(Shape), record(Shape, "another"))
    assert found.startswith("one: key: ")


def test_what_breaks_the_promise_is_not_written_over_it_until_the_version_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fields.txt"
    monkeypatch.setattr(json_fields, "RECORD", path)
    monkeypatch.setattr(json_fields, "all_printed", lambda: (Printed("one", "key", Shape),))
    assert main() == 0
    promised = path.read_text()
    monkeypatch.setattr(json_fields, "all_printed", lambda: (Printed("one", "key", changed(number=str)),))
    assert main() == 1
    assert path.read_text() == promised
    assert "shape.number: " in capsys.readouterr().err
    monkeypatch.setattr(json_fields, "SCHEMA_VERSION", 2)
    assert main() == 0
    assert path.read_text().startswith("schema_version: 2\n")
