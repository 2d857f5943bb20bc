"""Attempts folded from events."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.run.attempts.events import Attempt, Event, append_closed, append_opened, fold, read
from opsctl.run.config.paths import RunPaths
from tests.anything import MOMENTS, any_json
from trainer.formats.attempt.attempt_records import Failure, RankPlace
from trainer.formats.tolerant import convert

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def minutes(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "output")
    paths.output.mkdir()
    return paths


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


def test_an_attempt_reads_back_as_it_was_written(paths: RunPaths) -> None:
    attempt = msgspec.structs.replace(
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


def events(*said: dict[str, object]) -> list[Event]:
    return [event for one in said if (event := convert(one, Event)) is not None]


def test_fields_of_a_wrong_type_are_passed_over() -> None:
    begin = {"event": "opened", "id": "1", "job_id": 1, "nodes": "x", "opened_at": "noon", "user": 3, "revision": None}
    end = {"event": "closed", "id": "1", "reason": "failed", "exit_code": "1", "ranks": [3, {}], "note": True}
    assert fold(events(begin, end)) == [Attempt(number=1, id="1", job_id=1, reason="failed")]


def test_a_closing_does_not_change_how_the_attempt_began() -> None:
    begin = {"event": "opened", "id": "1", "job_id": 1, "user": "ann", "reason": "signal"}
    end = {"event": "closed", "id": "1", "job_id": 2, "number": 9, "user": "bob", "reason": "failed"}
    assert fold(events(begin)) == [Attempt(number=1, id="1", job_id=1, user="ann")]
    assert fold(events(begin, end)) == [Attempt(number=1, id="1", job_id=1, user="ann", reason="failed")]


def test_the_first_foreign_closing_counts_and_the_jobs_own_beats_it() -> None:
    begin: dict[str, object] = {"event": "opened", "id": "1", "job_id": 1}
    foreign: list[dict[str, object]] = [
        {"event": "closed", "id": "1", "closed_by": who, "reason": who} for who in ("ann@a", "bob@b")
    ]
    own: dict[str, object] = {"event": "closed", "id": "1", "closed_by": "job", "reason": "finished"}
    assert fold(events(begin, *foreign))[0].reason == "ann@a"
    assert fold(events(begin, *foreign, own))[0].reason == "finished"
    assert fold(events(begin, own, *foreign))[0].reason == "finished"


def test_of_the_jobs_own_closings_the_last_counts_which_has_the_verdict() -> None:
    begin: dict[str, object] = {"event": "opened", "id": "1", "job_id": 1}
    own: dict[str, object] = {"event": "closed", "id": "1", "closed_by": "job", "reason": "failed"}
    foreign: dict[str, object] = {"event": "closed", "id": "1", "closed_by": "ann@a", "reason": "unknown"}
    judged = {**own, "verdict": {"cause": "gpu-ecc", "node": "x02"}}
    (attempt,) = fold(events(begin, own, foreign, judged, foreign))
    assert attempt.reason == "failed" and attempt.verdict is not None and attempt.verdict.node == "x02"


def test_the_same_job_id_twice_is_two_attempts() -> None:
    openings: list[dict[str, object]] = [{"event": "opened", "id": key, "job_id": 7} for key in ("7-a", "7-b")]
    opened_twice = fold(events(*openings))
    assert [attempt.number for attempt in opened_twice] == [1, 2]


#: Two lines of earlier versions: a rank without a GPU may say null, moments are to the millisecond.
OLD_LINES = b"""\
{"event": "opened", "id": "7-ab", "job_id": 7, "array_job_id": 5, "array_task": "2", \
"chain_submitted_at": "2026-11-21T12:00:00.000+00:00", "revision": "0001-abc", "user": "ann", "nodes": ["x01", "x02"], \
"opened_at": "2026-11-21T13:01:00.250+01:00", "kill_switch_path": "/out/kill-switch", "iteration_at_start": null}
{"event": "closed", "id": "7-ab", "closed_at": "2026-11-21T12:30:00.000+00:00", "closed_by": "job", \
"reason": "signal", "exit_code": 137, "signal": 9, "iteration_at_end": 61, "checkpoint_at_end": 60, \
"first_failure": {"rank": 3, \
"node": "x02", "local_rank": 1, "exit_code": null, "signal": 9, "failed_at": "2026-11-21T12:29:00.000+00:00", \
"message": "killed by SIGKILL", "error_file": ""}, "other_failures": [], "error_files": [], "lost_nodes": ["x02"], \
"ranks": [{"rank": 0, "node": "x01", "gpu": "0"}, {"rank": 1, "node": "x01", "gpu": null}], "note": "a note"}
"""


def test_lines_of_earlier_versions_are_read(paths: RunPaths) -> None:
    paths.state.mkdir(parents=True)
    paths.attempts.write_bytes(OLD_LINES)
    assert read(paths) == [
        Attempt(
            number=1,
            id="7-ab",
            job_id=7,
            array_job_id=5,
            array_task="2",
            chain_submitted_at=NOON,
            revision="0001-abc",
            user="ann",
            nodes=("x01", "x02"),
            opened_at=minutes(1) + timedelta(milliseconds=250),
            kill_switch_path="/out/kill-switch",
            closed_at=minutes(30),
            closed_by="job",
            reason="signal",
            exit_code=137,
            signal=9,
            iteration_at_end=61,
            checkpoint_at_end=60,
            first_failure=Failure(3, "x02", 1, None, 9, minutes(29), "killed by SIGKILL"),
            lost_nodes=("x02",),
            ranks=(RankPlace(0, "x01", "0"), RankPlace(1, "x01")),
            note="a note",
        )
    ]


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


def test_the_first_checkpoint_of_all_is_a_new_one_and_none_is_not() -> None:
    def made(start: int | None, end: int | None) -> bool:
        return msgspec.structs.replace(opened(), iteration_at_start=start, checkpoint_at_end=end).made_checkpoint

    assert made(None, 10) and made(0, 10)
    assert not made(None, None) and not made(10, 10)


@given(st.lists(st.binary(max_size=40)))
def test_reading_never_fails(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    paths.state.mkdir()
    paths.attempts.write_bytes(b"\n".join(lines))
    assert read(paths) == []


@given(st.lists(any_json(Event.__struct_fields__)))
def test_any_json_folds_without_an_error(values: list[object]) -> None:
    found = [event for one in values if (event := convert(one, Event)) is not None]
    assert len(fold(found)) <= len(values)


TEXT = st.text(max_size=20)
NUMBER = st.none() | st.integers(-(2**40), 2**40)
MOMENT = st.none() | MOMENTS
FAILURES = st.builds(Failure, st.integers(0), TEXT, NUMBER, NUMBER, NUMBER, MOMENT, TEXT, TEXT)
ATTEMPTS = st.builds(
    Attempt,
    number=st.just(1),
    id=TEXT,
    job_id=st.integers(1),
    array_job_id=NUMBER,
    chain_submitted_at=MOMENT,
    nodes=st.lists(TEXT).map(tuple),
    opened_at=MOMENT,
    closed_at=MOMENT,
    reason=TEXT,
    exit_code=NUMBER,
    first_failure=st.none() | FAILURES,
    other_failures=st.lists(FAILURES, max_size=3).map(tuple),
    error_files=st.lists(TEXT, max_size=3).map(tuple),
    ranks=st.lists(st.builds(RankPlace, st.integers(0), TEXT, TEXT, NUMBER, NUMBER), max_size=3).map(tuple),
    note=TEXT,
)


@given(ATTEMPTS)
def test_every_attempt_reads_back_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, attempt: Attempt) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    append_opened(paths, attempt)
    append_closed(paths, attempt)
    assert read(paths) == [attempt]
