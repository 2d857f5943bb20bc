"""What was promised of `--json` is kept while schema_version is the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from opsctl.cli import json_promise
from opsctl.cli.json_promise import broken, main, record, text_of
from opsctl.cli.json_schema import document
from opsctl.cli.json_shapes import PRINTED, Printed

FOLDER = Path(__file__).parents[3] / "docs" / "schemas"
WRITE = "write it anew: python -m opsctl.cli.json_promise docs/schemas"


def test_what_is_printed_today_keeps_what_is_on_record() -> None:
    promised = json.loads(record(FOLDER).read_text())
    assert broken(promised, document(PRINTED)) == [], "leave what was, or raise SCHEMA_VERSION"


def test_what_is_printed_today_is_on_record() -> None:
    assert record(FOLDER).read_text() == text_of(document(PRINTED)), WRITE


class Inner(msgspec.Struct):
    size_gib: float
    name: str | None


class Shape(msgspec.Struct):
    number: int
    word: Literal["a", "b"]
    held: list[Inner]
    by_name: dict[str, Inner]


def schema(shape: Any, command: str = "one", when: str = "") -> dict[str, Any]:
    return document([Printed(command, "key", shape, when)])


def changed(bases: type[msgspec.Struct] = Shape, *, omit_defaults: bool = False, **fields: Any) -> type[msgspec.Struct]:
    """`bases` with some fields of other types, None for one that is gone, a pair for one with a default."""
    kept = {field.name: field.type for field in msgspec.structs.fields(bases)} | fields
    given = [(name, *(kind if isinstance(kind, tuple) else (kind,))) for name, kind in kept.items() if kind is not None]
    return msgspec.defstruct(f"Renamed{bases.__name__}", given, omit_defaults=omit_defaults, kw_only=True)


def test_a_shape_of_another_name_with_more_keys_and_more_words_keeps_the_promise() -> None:
    longer = changed(Inner, more=int)
    now = changed(word=Literal["a", "b", "c"], held=list[longer], further=str)  # type: ignore[valid-type]
    assert broken(schema(Shape), schema(now)) == []
    assert broken(schema(changed(number=(int, 0), omit_defaults=True)), schema(Shape)) == []


@pytest.mark.parametrize(
    ("now", "where"),
    [
        (changed(number=None), "key.number: "),
        (changed(number=str), "key.number: "),
        (changed(number=int | None), "key.number: "),
        (changed(number=(int, 0), omit_defaults=True), "key.number: "),
        (changed(word=Literal["a"]), "key.word: "),
        (changed(word=str), "key.word: "),
        (changed(held=list[changed(Inner, size_gib=None)]), "key.held[].size_gib: "),  # type: ignore[misc]
        (changed(held=list[changed(Inner, name=str)]), "key.held[].name: "),  # type: ignore[misc]
        (changed(by_name=dict[str, changed(Inner, size_gib=str)]), "key.by_name[].size_gib: "),  # type: ignore[misc]
        (list[Shape], "key: "),
    ],
    ids=str,
)
def test_what_a_reader_would_miss_or_misread_breaks_it(now: Any, where: str) -> None:
    found = broken(schema(Shape), schema(now))
    assert len(found) == 1 and where in found[0], found


def test_a_command_that_prints_it_no_longer_breaks_it() -> None:
    (found,) = broken(schema(Shape), schema(Shape, "another"))
    assert found.startswith("opsctl one: key: ")


def test_what_breaks_the_promise_is_not_written_over_it_until_the_version_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(json_promise, "PRINTED", (Printed("one", "key", Shape),))
    assert main(tmp_path) == 0
    promised = record(tmp_path).read_text()
    monkeypatch.setattr(json_promise, "PRINTED", (Printed("one", "key", changed(number=str)),))
    assert main(tmp_path) == 1
    assert record(tmp_path).read_text() == promised
    assert "key.number: " in capsys.readouterr().err
    monkeypatch.setattr(json_promise, "SCHEMA_VERSION", 2)
    assert main(tmp_path) == 0
    assert (tmp_path / "1.json").read_text() == promised and (tmp_path / "2.json").exists()
