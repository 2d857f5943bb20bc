"""Evaluations, times, checkpoints and stamps in the log: letter for letter, and read back."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.formats.logs.log_lines import (
    MARKS,
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointSaving,
    Evaluation,
    FreshStart,
    Stamp,
    Timers,
    argument_lines,
    parse_checkpoint_line,
    parse_evaluation,
    parse_stamp,
    parse_timers,
    perplexity,
    stamp,
    write_checkpoint_line,
    write_evaluation,
    write_fresh_start,
    write_timers,
)

ITERATIONS = st.integers(0, 10**18 - 1)
#: Loss and perplexity as the line has them, to seven digits.
PRINTED = st.floats(1e-9, 1e30).map(lambda value: float(f"{value:.6E}"))
WORDS = st.from_regex(r"[^\W_][\w./ -]{0,20}(?<! )", fullmatch=True)
FOLDERS = WORDS.map(lambda words: f"/{words}")


def marked(line: str) -> bool:
    return any(mark in line.encode() for mark in MARKS)


@given(WORDS, st.none() | ITERATIONS, PRINTED, st.none() | PRINTED, st.sampled_from(["val", "test"]))
def test_any_evaluation_is_read_back(
    group: str, iteration: int | None, loss: float, known: float | None, data: str
) -> None:
    found = Evaluation(group, iteration, loss, known, data if iteration is None else "val")
    _, line, _ = write_evaluation(found).splitlines()
    assert parse_evaluation(line) == found and marked(line)


@given(st.dictionaries(st.from_regex(r"[a-z][a-z-]{0,20}", fullmatch=True), st.integers(0, 10**9), min_size=1))
def test_any_times_are_read_back(hundredths: dict[str, int]) -> None:
    timers = Timers({name: value / 100 for name, value in hundredths.items()})
    line = write_timers(timers)
    assert parse_timers(line) == timers and marked(line)


@given(st.sampled_from([CheckpointSaving, CheckpointSaved, CheckpointLoaded]), ITERATIONS, FOLDERS)
def test_any_checkpoint_line_is_read_back(
    kind: type[CheckpointSaving | CheckpointSaved | CheckpointLoaded], iteration: int, folder: str
) -> None:
    line = write_checkpoint_line(kind(iteration, folder))
    assert parse_checkpoint_line(line) == kind(iteration, folder) and marked(line)


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (CheckpointSaving(60, "/c"), "saving checkpoint at iteration      60 to /c"),
        (CheckpointSaved(60, "/c"), "  successfully saved checkpoint at iteration      60 to /c"),
        (
            CheckpointFailed(60, "/c", "cannot write /c/x: No space left on device; the checkpoint before it stands"),
            "  failed to save checkpoint at iteration      60 to /c: cannot write /c/x: No space left on device; ",
        ),
        (
            CheckpointFailed(60, "/c", "rank 3 holds weights that are not finite: x; y", not_finite=True),
            "  did not save checkpoint at iteration      60 to /c: rank 3 holds weights that are not finite: x; y; ",
        ),
        (CheckpointLoaded(60, "/c"), "  successfully loaded checkpoint from /c at iteration 60"),
    ],
)
def test_a_checkpoint_line_is_the_documented_one(
    said: CheckpointSaving | CheckpointSaved | CheckpointFailed | CheckpointLoaded, line: str
) -> None:
    written = write_checkpoint_line(said)
    assert written.startswith(line) and (written == line or isinstance(said, CheckpointFailed))
    assert parse_checkpoint_line(written) == said and marked(written)


def test_a_fresh_start_is_told_in_megatrons_words_and_read_back() -> None:
    lines = write_fresh_start(Path("/c/latest")).splitlines()
    assert lines == [
        "Unable to find latest file at /c/latest, so the training starts at its beginning.",
        "WARNING: could not find the metadata file /c",
        "    will not load any checkpoints and will start from random",
    ]
    assert [parse_checkpoint_line(line) for line in lines] == [None, None, FreshStart()]
    assert marked(lines[2])


UNZONED = st.datetimes(datetime(1000, 1, 1), datetime(9999, 12, 30))  # noqa: DTZ001
ZONED = st.tuples(UNZONED, st.integers(-14 * 60, 14 * 60)).map(
    lambda drawn: drawn[0].replace(tzinfo=timezone(timedelta(minutes=drawn[1])))
)


@given(st.from_regex(r"[^\]\n\r]+", fullmatch=True), ZONED | UNZONED)
def test_any_stamp_is_read_back_to_the_second(what: str, at: datetime) -> None:
    line = stamp(what, at)
    read = parse_stamp(line)
    assert read == Stamp(what, at.replace(microsecond=0)) and marked(line)
    assert read and (read.at.tzinfo is None) == (at.tzinfo is None)


def test_an_evaluation_is_framed_one_dash_longer_than_its_line() -> None:
    rule, line, again = write_evaluation(Evaluation("valid", None, 25.0, perplexity(25.0))).splitlines()
    assert line == (
        " valid loss at the end of training for val data | lm loss value: 2.500000E+01 | "
        f"lm loss PPL: {math.exp(20):.6E} | "
    )
    assert rule == again == "-" * (len(line) + 1)


def test_a_stamp_begins_as_the_originals_and_ends_in_its_zone() -> None:
    line = stamp("before the start")
    assert re.fullmatch(r"\[before the start\] datetime: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d\d:\d\d", line)


def test_a_stamp_without_a_zone_is_read_as_one_that_has_none() -> None:
    read = parse_stamp("[before the start] datetime: 2022-03-11 14:03:12 ")
    assert read == Stamp("before the start", datetime(2022, 3, 11, 14, 3, 12))  # noqa: DTZ001


@pytest.mark.parametrize("at", ["2022-02-30 14:03:12", "2022-03-11 14:03:12 +99:00", "0001-01-01 00:00:00 +14:00"])
def test_a_moment_that_the_calendar_does_not_have_is_no_stamp(at: str) -> None:
    assert parse_stamp(f"[before the start] datetime: {at}") is None


def test_a_stamp_can_be_of_another_moment() -> None:
    moment = datetime(2026, 11, 21, 8, 3, 56, tzinfo=UTC)
    assert stamp("Detected kill switch at /k. Exiting", moment) == (
        "[Detected kill switch at /k. Exiting] datetime: 2026-11-21 08:03:56 +00:00"
    )


def test_arguments_are_sorted_and_dotted_to_one_column() -> None:
    lines = argument_lines({"seed": 42, "adam_beta1": 0.9, "DDP_impl": "local"}).splitlines()
    assert lines[0] == "------------------------ arguments ------------------------"
    assert lines[-1] == "-------------------- end of arguments ---------------------"
    assert [line.split()[0] for line in lines[1:-1]] == ["adam_beta1", "DDP_impl", "seed"]
    assert lines[3] == "  seed " + "." * 44 + " 42"
    assert {line.rindex(". ") for line in lines[1:-1]} == {50}
