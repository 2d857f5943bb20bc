from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.lines import AttemptStart, parse_attempt_start, write_attempt_start
from opsctl.run.logs.reader import LogReader
from opsctl.run.logs.spans import Span, read_spans, take

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def start(number: int, iteration: int | None, requeues: int = 0) -> AttemptStart:
    return AttemptStart(
        at=AT,
        attempt=number,
        job=f"7_{number}",
        job_id=70 + number,
        requeues=requeues,
        revision="0001-abc",
        iteration=iteration,
        nodes=("n1", "n2"),
    )


def iteration(number: int, seconds: float) -> str:
    return (
        f"[default3]: iteration {number:8d}/     100 | consumed samples: {8 * number:12d} | "
        f"elapsed time per iteration (s): {seconds:.2f} | global batch size:     8 |"
    )


LOG = [
    "chatter before any attempt",
    iteration(99, 1.0),
    write_attempt_start(start(1, None)),
    "[default0]:[before the start of training step] datetime: 2026-03-01 12:01:00 +00:00",
    iteration(10, 2.0),
    "[default3]:time (ms) | save-checkpoint: 1500.00 | save-checkpoint-background: 9000.00",
    "[default0]:Traceback (most recent call last):",
    iteration(20, 3.0),
    "[default0]:time (ms) | evaluation: 4000.00",
    "END TIME: 2026-03-01T13:00:00+00:00 attempt 1 ended: signal, exit code 137, last checkpoint iteration 10",
    write_attempt_start(start(2, 10, requeues=1)),
    iteration(15, 1.0),
    iteration(15, 9.0),  # logged twice
]


@pytest.mark.parametrize("iteration_", [None, 40])
@pytest.mark.parametrize("requeues", [0, 2])
def test_the_line_with_which_an_attempt_begins_is_read_as_it_was_written(iteration_: int | None, requeues: int) -> None:
    assert parse_attempt_start(write_attempt_start(start(3, iteration_, requeues))) == start(3, iteration_, requeues)
    assert parse_attempt_start("START TIME: yesterday attempt 1, job 7") is None


def test_each_attempt_has_its_part_of_the_log() -> None:
    spans: list[Span] = []
    for found in LogReader().feed("".join(f"{line}\n" for line in LOG).encode()):
        take(spans, found)
    first, second = spans
    assert (first.attempt, first.job_id, first.begins_at, first.trains_from) == (1, 71, 0, AT.replace(minute=1))
    assert (list(first.iterations), list(first.seconds)) == ([10, 20], [20.0, 30.0])
    assert (first.saves_s, first.evaluations_s) == ([1.5], [4.0])
    assert (second.attempt, second.begins_at, second.trains_from) == (2, 10, None)
    assert (list(second.iterations), list(second.seconds)) == ([15], [5.0])


def test_a_checkpoint_that_was_saved_before_the_training_began_is_where_it_began() -> None:
    """It was in memory, and is newer than the one that the job knew of."""
    saved = "[default0]:  successfully saved checkpoint at iteration      14 to /o/checkpoints"
    lines = [write_attempt_start(start(2, 10)), saved, LOG[3], iteration(15, 1.0), saved.replace("14", "15")]
    spans: list[Span] = []
    for found in LogReader().feed("".join(f"{line}\n" for line in lines).encode()):
        take(spans, found)
    assert [(one.begins_at, list(one.iterations), list(one.seconds)) for one in spans] == [(14, [15], [1.0])]


def test_a_log_is_read_in_blocks_whatever_stands_in_it(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    assert read_spans(paths) == []
    paths.main_log.parent.mkdir(parents=True)
    noise = b"\0" * 70_000 + b"\xff" * 300_000 + b"\n"
    paths.main_log.write_bytes(noise + "\n".join(LOG).encode() + b"\n" + noise + LOG[-1].encode()[:40])
    assert [list(one.iterations) for one in read_spans(paths)] == [[10, 20], [15]]
