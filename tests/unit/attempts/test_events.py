"""Attempts folded from events, and the brake."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.attempts.events import (
    Attempt,
    Failure,
    RankPlace,
    append_closed,
    append_opened,
    brake_trips,
    fold,
    read,
    without_progress,
)
from opsctl.runs.paths import RunPaths

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def minutes(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "output")


def opened(number: int = 1) -> Attempt:
    return Attempt(
        number=number,
        id=f"7-{number}",
        job_id=7,
        array_job_id=5,
        array_task="2",
        chain_submitted_at=NOON,
        revision="0001-abc",
        user="ann",
        nodes=("x01", "x02"),
        opened_at=minutes(number),
        kill_switch_path="/out/kill-switch",
        iteration_at_start=40,
    )


def ended(number: int, reason: str = "failed", start: int | None = 0, end: int | None = 0, at: float = 1) -> Attempt:
    return Attempt(
        number=number,
        id=str(number),
        job_id=number,
        iteration_at_start=start,
        checkpoint_at_end=end,
        reason=reason,
        closed_at=minutes(at),
    )


def test_an_attempt_reads_back_as_it_was_written(paths: RunPaths) -> None:
    attempt = replace(
        opened(),
        closed_at=minutes(30),
        closed_by="job",
        reason="signal",
        exit_code=137,
        signal=9,
        iteration_at_end=61,
        checkpoint_at_end=60,
        first_failure=Failure(3, "x02", 1, None, 9, minutes(29), "killed by SIGKILL"),
        other_failures=(Failure(0, "x01", 0, 1, None, None, "Connection reset", "/out/error.json"),),
        error_files=("/out/error.json",),
        lost_nodes=("x02",),
        ranks=(RankPlace(0, "x01", "0"), RankPlace(1, "x01", "")),
        note="a note",
    )
    append_opened(paths, opened())
    assert read(paths) == [opened()] and read(paths)[0].is_open
    append_closed(paths, attempt)
    assert read(paths) == [attempt]
    assert attempt.display_id == "5_2"
    assert json.loads(json.dumps(attempt.to_json()))["first_failure"]["node"] == "x02"


def test_no_file_is_no_attempts(paths: RunPaths) -> None:
    assert read(paths) == []


@pytest.mark.parametrize(
    "junk",
    [
        b'{"event": "clos',
        b"\xff\xfe\n",
        b"[1, 2]",
        b"null",
        b'{"event": "renamed", "id": "7-1"}',
        b'{"event": "closed", "id": "7-1"}',
        b'{"event": "closed", "id": "never-opened", "reason": "failed"}',
        b'{"event": "closed", "id": ["7-1"], "reason": "failed"}',
        b'{"event": "opened", "id": "9", "job_id": "nine"}',
    ],
)
def test_a_half_written_or_foreign_line_changes_nothing(paths: RunPaths, junk: bytes) -> None:
    append_opened(paths, opened())
    with paths.attempts.open("ab") as file:
        file.write(junk)
    append_opened(paths, opened(2))
    assert [attempt.id for attempt in read(paths)] == ["7-1", "7-2"]
    assert all(attempt.is_open for attempt in read(paths))


def test_fields_of_a_wrong_type_are_passed_over() -> None:
    event = {"event": "opened", "id": "1", "job_id": 1, "nodes": "x", "opened_at": "noon", "user": 3, "revision": None}
    (attempt,) = fold([event, {"event": "closed", "id": "1", "reason": "failed", "exit_code": "1", "ranks": [3, {}]}])
    assert attempt == Attempt(number=1, id="1", job_id=1, reason="failed")


def test_the_first_foreign_closing_counts_and_the_jobs_own_beats_it() -> None:
    begin = {"event": "opened", "id": "1", "job_id": 1}
    foreign = [{"event": "closed", "id": "1", "closed_by": who, "reason": who} for who in ("ann@a", "bob@b")]
    own = {"event": "closed", "id": "1", "closed_by": "job", "reason": "finished"}
    assert fold([begin, *foreign])[0].reason == "ann@a"
    assert fold([begin, *foreign, own])[0].reason == "finished"
    assert fold([begin, own, *foreign])[0].reason == "finished"


def test_the_same_job_id_twice_is_two_attempts() -> None:
    events = [{"event": "opened", "id": key, "job_id": 7} for key in ("7-a", "7-b")]
    assert [attempt.number for attempt in fold(events)] == [1, 2]


def test_many_writers_at_once_lose_no_line(paths: RunPaths) -> None:
    def write(first: int) -> None:
        for number in range(first, first + 20):
            append_opened(paths, opened(number))

    writers = [threading.Thread(target=write, args=(first,)) for first in (0, 100, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read(paths)) == 60


@given(st.lists(st.binary(max_size=40)))
def test_reading_never_fails(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    paths.state.mkdir()
    paths.attempts.write_bytes(b"\n".join(lines))
    assert read(paths) == []


def test_three_attempts_in_a_row_without_a_new_checkpoint_trip_the_brake() -> None:
    attempts = [ended(number) for number in (1, 2, 3)]
    assert not brake_trips(attempts[:2], NOON)
    assert brake_trips(attempts, NOON)


def test_a_new_checkpoint_starts_the_row_again() -> None:
    attempts = [ended(1), ended(2), ended(3, start=0, end=10), ended(4), ended(5)]
    assert without_progress(attempts, NOON) == 2
    assert not brake_trips(attempts, NOON)


def test_the_first_checkpoint_of_all_is_a_new_one_and_none_is_not() -> None:
    assert ended(1, start=None, end=10).made_checkpoint
    assert not ended(1, start=None, end=None).made_checkpoint
    assert not ended(1, start=10, end=10).made_checkpoint


def test_leaving_through_the_kill_switch_or_at_the_end_is_neutral() -> None:
    failures = [ended(1), ended(2)]
    neutral = [ended(3, "kill-switch"), ended(4, "finished"), ended(5, "brake")]
    assert without_progress(failures + neutral, NOON) == 2
    assert without_progress([*failures, *neutral, ended(6)], NOON) == 3


def test_only_what_ended_after_the_chain_was_submitted_counts() -> None:
    before = [ended(number, at=-1) for number in (1, 2, 3)]
    assert not brake_trips(before, NOON)
    assert brake_trips(before, minutes(-5))
    assert not brake_trips([*before, ended(4, at=1), ended(5, at=2)], NOON)


def test_an_open_attempt_does_not_count() -> None:
    assert without_progress([opened(), ended(2), ended(3)], NOON) == 2
