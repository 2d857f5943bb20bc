"""Records of an attempt are read back as written, whole or truncated."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.anything import MOMENTS, any_json
from trainer.formats.attempt.attempt_records import (
    ExitReport,
    Failure,
    LeavingNote,
    RankPlace,
    StopRequest,
    failure_file,
    ranks_file,
)
from trainer.formats.json_text import json_file_text, json_line
from trainer.formats.tolerant import convert, decode

TEXT = st.text() | st.just("caf\udce9")  # names of files may be no UTF-8
NUMBER = st.none() | st.integers()
MOMENT = st.none() | MOMENTS
KINDS: dict[type[msgspec.Struct], st.SearchStrategy[Any]] = {
    RankPlace: st.builds(RankPlace, st.integers(), TEXT, TEXT, NUMBER, NUMBER),
    Failure: st.builds(Failure, st.integers(), TEXT, NUMBER, NUMBER, NUMBER, MOMENT, TEXT, TEXT),
    LeavingNote: st.builds(LeavingNote, TEXT, NUMBER, MOMENT),
    ExitReport: st.builds(ExitReport, TEXT, NUMBER, NUMBER),
    StopRequest: st.builds(StopRequest, TEXT, MOMENT, TEXT),
}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_record_reads_back_as_it_was_written(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    record = data.draw(KINDS[kind])
    assert decode(json_file_text(record), kind) == record
    assert decode(json_line([record, record]), list[kind]) == [record, record]  # type: ignore[valid-type]


@given(st.sampled_from(list(KINDS)), st.data())
def test_any_json_is_read_without_an_error(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    found = convert(data.draw(any_json(kind.__struct_fields__)), kind)
    assert found is None or isinstance(found, kind)


def test_records_of_earlier_launchers_are_read() -> None:
    ranks = b'[{"rank": 2, "local_rank": 0, "node": "x02", "gpu": null, "pid": 4711}]'
    assert decode(ranks, list[RankPlace]) == [RankPlace(2, "x02", "", 0, 4711)]
    failure = (
        b'{"rank": 2, "local_rank": 0, "node": "x02", "exit_code": 1, "signal": null,'
        b' "failed_at": "2026-11-21T08:15:51.500000+00:00", "message": "boom", "error_file": null}'
    )
    failed_at = datetime(2026, 11, 21, 8, 15, 51, 500000, tzinfo=UTC)
    assert decode(failure, Failure) == Failure(2, "x02", 0, 1, None, failed_at, "boom")


def test_the_file_names_are_stable() -> None:
    assert (ranks_file(3), failure_file(12)) == ("ranks-3.json", "failure-12.json")
