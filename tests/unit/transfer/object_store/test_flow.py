from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from opsctl.transfer.object_store import flow as flow_module
from opsctl.transfer.object_store.flow import Flow, NoAnswer, Stopped, limit_s, within


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(flow_module, "time", clock)
    return clock


def waiting(flow: Flow, clock: Clock) -> None:
    """Let waits pass the clock's time."""

    def pause(wait_s: float) -> None:
        clock.now_s += max(0.0, wait_s)

    flow.pause = pause  # type: ignore[method-assign]


def test_all_workers_together_take_no_more_than_the_limit(clock: Clock) -> None:
    flow = Flow(bytes_per_s=100)
    waiting(flow, clock)
    for _ in range(10):
        flow.take(50)
    assert clock.now_s == pytest.approx(5.0)


def test_time_in_which_nothing_was_sent_is_not_made_up_for(clock: Clock) -> None:
    flow = Flow(bytes_per_s=100)
    waiting(flow, clock)
    clock.now_s = 60.0
    flow.take(100)
    assert clock.now_s == pytest.approx(61.0)


def test_without_a_limit_nothing_waits(clock: Clock) -> None:
    Flow().take(1 << 60)
    assert clock.now_s == 0.0


def test_who_waits_for_the_limit_ends_at_once_when_the_transfer_does() -> None:
    flow = Flow(bytes_per_s=1)
    ended = threading.Event()

    def take() -> None:
        with pytest.raises(Stopped):
            flow.take(1 << 30)
        ended.set()

    worker = threading.Thread(target=take, daemon=True)
    worker.start()
    flow.stop()
    assert ended.wait(10)


def test_progress_is_told_the_sum() -> None:
    told: list[int] = []
    flow = Flow(reached=told.append)
    flow.done(3)
    flow.done(4)
    assert told == [3, 7]


def test_what_comes_in_time_is_given_and_what_is_raised_is_raised() -> None:
    assert within(60.0, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(60.0, lambda: 1 // 0)


def test_a_library_that_gives_up_first_says_the_same() -> None:
    def late() -> None:
        raise TimeoutError("https://store/with?a=secret")

    with pytest.raises(NoAnswer, match=r"^[^:/]+ 0 s$"):
        within(60.0, late)


def test_more_bytes_may_take_longer() -> None:
    assert limit_s(10.0, 0) == 10.0
    assert limit_s(10.0, 6 << 20) == 106.0  # at 64 KiB a second


_HANGS = """
import threading
from opsctl.transfer.object_store.flow import within
within(0.1, threading.Event().wait)
"""


def test_a_call_that_never_returns_holds_no_process_up() -> None:
    done = subprocess.run([sys.executable, "-c", _HANGS], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-1].startswith("opsctl.transfer.object_store.flow.NoAnswer: ")
