from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from opsctl.diagnosis.goodput.account import Amounts, Part, account, estimated, first_of, fitted, scaled, stays
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.run.logs.spans import Span
from tests.unit.diagnosis.goodput.made import BEGINNING, at, attempt, span


def told(
    attempts: list[Attempt], spans: list[Span], until: float, is_queued: bool | None = False, **more: Any
) -> dict[str, float]:
    """Return the seconds of wall time by part, and of lost time by cause."""
    gpus = {one.id: 8 for one in attempts}
    found = account(attempts, spans, [BEGINNING], gpus, at(until), is_queued, **more)
    return {f"{part} {cause}".strip(): ms / 1000 for (part, cause), ms, _ in found.largest_first()}


def test_a_run_that_failed_once_and_went_on_is_told_to_the_second() -> None:
    """Waited 100 s; started 20, trained 300 (100 of it lost), saved 5, failed; waited 60; started 10, trained."""
    first = attempt(1, 100, 460, reason="signal", iteration_at_end=30, checkpoint_at_end=20)
    second = attempt(2, 520, 1000, iteration_at_start=20, iteration_at_end=60, checkpoint_at_end=60)
    spans = [
        span(1, 0, 120, (10, 100.0), (20, 100.0), (30, 100.0), saves_s=[5.0]),
        span(2, 20, 530, (40, 200.0), (60, 200.0), saves_s=[5.0, 5.0], evaluations_s=[40.0]),
    ]
    assert told([first, second], spans, 1000) == {
        "trained": 600.0,
        "lost signal": 135.0,  # 100 lost, and 35 from the last line to the end
        "waited": 160.0,
        "evaluated": 40.0,
        "started": 30.0,
        "left": 20.0,
        "saved": 15.0,
    }


def test_what_a_restart_took_from_memory_is_not_lost() -> None:
    """Iterations 21 to 25 were in no checkpoint at the end, and the restart continued from them."""
    first = attempt(1, 0, 320, reason="signal", iteration_at_end=30, checkpoint_at_end=20)
    second = attempt(2, 320, 700, iteration_at_start=20, iteration_at_end=60, checkpoint_at_end=60)
    spans = [span(1, 0, 20, (20, 200.0), (30, 100.0)), span(2, 25, 350, (60, 350.0))]
    assert told([first, second], spans, 700) == {
        "trained": 600.0,
        "lost signal": 50.0,
        "started": 50.0,
    }


def test_what_triage_found_is_what_it_was_lost_to() -> None:
    verdict = Verdict(cause=Cause.GPU_ECC)
    first = attempt(1, 0, 100, reason="failed", verdict=verdict, iteration_at_end=5)
    assert told([first], [span(1, 0, 10, (5, 50.0))], 100) == {"lost gpu-ecc": 90.0, "started": 10.0}


def test_a_start_that_failed_before_any_iteration_is_lost_as_a_whole() -> None:
    first = attempt(1, 0, 100, reason="failed")
    assert told([first], [span(1, 0, None)], 100) == {"lost failed": 100.0}


def test_where_nothing_says_when_it_was_ready_what_was_no_iteration_is_not_known() -> None:
    first = attempt(1, 0, 100, reason="signal", iteration_at_end=5, checkpoint_at_end=5)
    assert told([first], [span(1, 0, None, (5, 50.0))], 100) == {"trained": 50.0, "not known": 50.0}


def test_without_its_part_of_the_log_an_attempt_is_not_known() -> None:
    assert told([attempt(1, 40, 100, iteration_at_end=9)], [], 100) == {"not known": 60.0, "waited": 40.0}
    other_job = [span(1, 0, 50, (9, 10.0))]
    other_job[0].job_id = 5
    assert told([attempt(1, 40, 100)], other_job, 100)["not known"] == 60.0


def test_between_attempts_it_is_idle_until_the_next_chain_is_submitted() -> None:
    attempts = [attempt(1, 0, 100), attempt(2, 200, 300, chain_submitted_at=at(170), iteration_at_start=0)]
    found = told(attempts, [], 450)
    assert (found["idle"], found["waited"], found["not known"]) == (70.0 + 150.0, 30.0, 200.0)
    assert told(attempts[:1], [], 150, is_queued=True)["waited"] == 50.0
    assert told(attempts[:1], [], 150, is_queued=None)["not known"] == 150.0


def test_of_two_that_overlap_the_later_one_trains() -> None:
    lost = attempt(1, 0, 500, reason="node-failure", iteration_at_end=10, checkpoint_at_end=10)
    second = attempt(2, 300, 600, iteration_at_start=10, iteration_at_end=20, checkpoint_at_end=20)
    spans = [span(1, 0, 0, (10, 100.0)), span(2, 10, 310, (20, 290.0))]
    assert told([lost, second], spans, 600) == {"trained": 390.0, "lost node-failure": 200.0, "started": 10.0}


def test_clocks_hours_apart_make_no_time() -> None:
    second = attempt(2, -7200, -7000, iteration_at_start=10, checkpoint_at_end=20)
    spans = [span(1, 0, 50, (10, 5000.0)), span(2, 10, -7100, (20, 90.0))]
    attempts = [attempt(1, 10, 100, iteration_at_end=10, checkpoint_at_end=10), second]
    found = account(attempts, spans, [BEGINNING], {}, at(300), None)
    assert found.whole_ms == 300_000 and all(ms >= 0 for ms in found.wall_ms.values())


def test_what_was_rolled_back_behind_is_lost_to_that() -> None:
    first = attempt(1, 0, 100, iteration_at_end=10, checkpoint_at_end=10)
    second = attempt(2, 100, 200, iteration_at_start=4, iteration_at_end=14, checkpoint_at_end=14)
    spans = [span(1, 0, 0, (10, 100.0)), span(2, 4, 100, (14, 100.0))]
    assert told([first, second], spans, 200) == {"trained": 140.0, "lost rollback": 60.0}


def test_what_runs_has_lost_nothing_yet() -> None:
    running = attempt(1, 10, None)
    assert told([running], [span(1, 0, 30, (10, 50.0))], 100) == {
        "trained": 50.0,
        "started": 20.0,
        "under way": 20.0,
        "waited": 10.0,
    }


def test_tasks_that_trained_nothing_are_no_attempts_and_gpus_count_only_while_held() -> None:
    held = attempt(2, 50, 80, reason="held")
    first = attempt(1, 20, 100, iteration_at_end=8, checkpoint_at_end=8)
    found = account([first, held], [span(1, 0, 20, (8, 80.0))], [BEGINNING], {"1-x": 16}, at(100), False)
    assert found.wall_ms == {(Part.WAITED, ""): 20_000, (Part.TRAINED, ""): 80_000}
    assert found.whole_gpu_ms == 16 * 80_000


def test_since_counts_from_there_and_an_attempt_by_its_share() -> None:
    first = attempt(1, 0, 100, iteration_at_end=10, checkpoint_at_end=10)
    found = told([first], [span(1, 0, 20, (10, 80.0))], 200, since=at(50))
    assert found == {"trained": 40.0, "started": 10.0, "idle": 100.0}


def test_before_anything_was_submitted_there_is_nothing() -> None:
    assert first_of([], []) is None and account([], [], [], {}, at(5), None) == Amounts()


def test_for_a_glance_iterations_take_as_long_as_the_newest_and_no_more_than_there_was() -> None:
    one = attempt(1, 0, 100, iteration_at_end=10, checkpoint_at_end=10)
    assert told([one], estimated([one], 8.0), 100) == {"trained": 80.0, "not known": 20.0}
    assert told([one], estimated([one], 800.0), 100) == {"trained": 100.0}


_SECONDS = st.floats(-1e5, 1e5, allow_nan=False)
_LENGTHS = st.floats(0, 1e5, allow_nan=False)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Attempt], list[Span]]:
    attempts, spans = [], []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        opened = draw(_SECONDS)
        length = draw(st.none() | _LENGTHS)
        closed = None if length is None else opened + length
        start = draw(st.none() | st.integers(0, 50))
        more = {
            "reason": None if closed is None else draw(st.sampled_from(["signal", "finished", "held", "unknown"])),
            "iteration_at_start": start,
            "iteration_at_end": draw(st.none() | st.integers(0, 90)),
            "checkpoint_at_end": draw(st.none() | st.integers(0, 90)),
            "chain_submitted_at": draw(st.none() | _SECONDS.map(at)),
        }
        attempts.append(attempt(number, opened, closed, **more))
        if draw(st.booleans()):
            steps = draw(st.lists(st.tuples(st.integers(1, 9), _LENGTHS), max_size=4))
            lines, iteration = [], start or 0
            for step, seconds in steps:
                iteration += step
                lines.append((iteration, seconds))
            ready = draw(st.none() | _SECONDS)
            spans.append(span(number, start or 0, ready, *lines, saves_s=draw(st.lists(_LENGTHS, max_size=2))))
    return attempts, spans


@given(histories(), _SECONDS, st.none() | st.booleans(), st.none() | _SECONDS)
def test_the_parts_add_up_to_the_whole_whatever_happened(
    history: tuple[list[Attempt], list[Span]], until: float, is_queued: bool | None, since: float | None
) -> None:
    attempts, spans = history
    first = first_of(attempts, [BEGINNING])
    assert first is not None
    found = account(
        attempts,
        spans,
        [BEGINNING],
        {one.id: 3 for one in attempts},
        at(until),
        is_queued,
        None if since is None else at(since),
    )
    begins = first if since is None else max(first, at(since))
    whole_ms = max(0, round((at(until) - begins) / timedelta(milliseconds=1)))
    assert abs(found.whole_ms - whole_ms) <= 1  # each moment is rounded
    assert all(ms >= 0 for ms in found.wall_ms.values())
    held_ms = found.whole_ms - found.of(Part.WAITED) - found.of(Part.IDLE)
    assert 0 <= found.whole_gpu_ms <= 3 * held_ms and found.whole_gpu_ms % 3 == 0
    assert len(stays(attempts, spans, at(until))) <= len(attempts)


A, B, REST = (Part.TRAINED, ""), (Part.SAVED, ""), (Part.LEFT, "")


def test_what_is_left_of_the_whole_is_the_rest() -> None:
    assert fitted([(A, 60), (B, 10), (A, 5)], 100, REST) == {A: 65, B: 10, REST: 25}


def test_more_than_the_whole_is_scaled_down_to_it() -> None:
    assert fitted([(A, 300), (B, 100), (B, -7)], 100, REST) == {A: 75, B: 25}


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(-5, 10**9)), max_size=6), st.integers(0, 10**9))
def test_nothing_is_made_and_nothing_lost(amounts: list[tuple[tuple[Part, str], int]], whole: int) -> None:
    found = fitted(amounts, whole, REST)
    assert sum(found.values()) == whole and all(ms >= 0 for ms in found.values())
    assert sum(scaled(found, 12_345).values()) == 12_345
