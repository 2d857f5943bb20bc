"""Truncated and edited files are read as far as they fit, without errors."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.anything import any_json
from trainer.formats.tolerant import convert, decode


class Place(msgspec.Struct, frozen=True):
    """One rank's."""

    rank: int
    node: str = ""


class Event(msgspec.Struct, frozen=True):
    """Something with every kind of field that our files have."""

    id: str
    at: datetime | None = None
    nodes: tuple[str, ...] = ()
    first: Place | None = None
    ranks: tuple[Place, ...] = ()
    notes: dict[str, int] = {}


WHOLE = Event(
    "a", datetime(2022, 3, 11, 9, 0, tzinfo=UTC), ("n1", "n2"), Place(0, "n1"), (Place(0), Place(1)), {"x": 1}
)


def test_what_was_written_whole_comes_back() -> None:
    assert decode(msgspec.json.encode(WHOLE), Event) == WHOLE
    assert decode(msgspec.json.encode([WHOLE]), list[Event]) == [WHOLE]


def test_a_field_of_the_wrong_type_takes_its_default_and_hurts_no_other() -> None:
    said = {
        "id": "a",
        "at": "yesterday",
        "nodes": ["n1", 7, "n2"],
        "first": {"node": "n1"},
        "ranks": [{"rank": 1}, "x"],
    }
    assert convert(said, Event) == Event("a", nodes=("n1", "n2"), ranks=(Place(1),))
    assert convert({"id": "a", "first": {"rank": 3, "node": 4}}, Event) == Event("a", first=Place(3))
    assert convert({"id": "a", "notes": {"x": 1, "y": "?"}}, Event) == Event("a", notes={"x": 1})


def test_what_an_annotation_asks_for_holds_for_what_is_read_tolerantly() -> None:
    class Stamped(msgspec.Struct):
        at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
        nodes: Annotated[tuple[str, ...], msgspec.Meta(max_length=1)] = ()

    assert decode(b'{"at": "2022-03-11T09:00:00", "nodes": ["n1", 7]}', Stamped) == Stamped(nodes=("n1",))
    assert decode(b'{"at": "2022-03-11T09:00:00Z", "nodes": ["n1", "n2"]}', Stamped) == Stamped(WHOLE.at)


def test_a_name_that_is_no_utf_8_is_read_as_python_writes_it() -> None:
    assert decode(json.dumps({"id": "caf\udce9"}), Event) == Event("caf\udce9")


def test_what_lacks_a_needed_field_is_nothing() -> None:
    assert convert({"nodes": []}, Event) is None
    assert convert({"id": 3}, Event) is None
    assert convert([{"id": "a"}, {"id": 3}], list[Event]) == [Event("a")]


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[1]", b"7", b"\xff\xfe", b"[" * 100_000, b'{"id": "a"} more'])
def test_what_is_no_such_json_is_nothing(text: bytes) -> None:
    assert decode(text, Event) is None


@given(any_json(Event.__struct_fields__))
def test_anything_is_read_without_an_error(value: object) -> None:
    found = convert(value, Event)
    assert found is None or isinstance(found, Event)


@given(st.integers(0, 300))
def test_a_cut_file_is_read_or_is_nothing(length: int) -> None:
    text = msgspec.json.encode(WHOLE)
    found = decode(text[:length], Event)
    assert found == (WHOLE if length >= len(text) else None)
