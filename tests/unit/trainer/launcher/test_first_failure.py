"""The rank that failed first: with real processes, and the choice among deaths."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from trainer.formats.attempt.error_file import is_lost_peer
from trainer.launcher.first_failure import Death, DeathWatch, first_to_fail

START = datetime(2022, 3, 11, 14, 0, tzinfo=UTC)
CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:13219"


def death(local_rank: int, after_s: float, exit_code: int | None = 1, signal_number: int | None = None) -> Death:
    return Death(local_rank, START + timedelta(seconds=after_s), exit_code, signal_number)


def messages(**by_rank: str) -> Callable[[int], str]:
    return lambda local_rank: by_rank.get(f"r{local_rank}", "")


def test_nobody_died() -> None:
    assert first_to_fail([], messages()) is None


def test_the_first_death_is_the_failure() -> None:
    deaths = [death(2, 0, None, signal.SIGKILL), death(0, 0.1), death(1, 0.2, None, signal.SIGTERM)]
    first, message = first_to_fail(deaths, messages(r0=CLOSED)) or (None, "")
    assert first == deaths[0]
    assert message == "killed by SIGKILL"


@pytest.mark.parametrize(("follower", "message"), [(death(0, 0), CLOSED), (death(0, 0, None, signal.SIGTERM), "")])
def test_a_peer_seen_dying_moments_before_the_killed_rank_is_a_follower(follower: Death, message: str) -> None:
    deaths = [follower, death(2, 0.3, None, signal.SIGKILL)]
    first, _ = first_to_fail(deaths, messages(r0=message)) or (None, "")
    assert first == deaths[1]


def test_a_death_long_after_is_not_the_cause() -> None:
    deaths = [death(0, 0), death(2, 30, None, signal.SIGKILL)]
    first, message = first_to_fail(deaths, messages(r0=CLOSED)) or (None, "")
    assert first == deaths[0]
    assert is_lost_peer(message) and message.endswith(CLOSED)


@pytest.mark.parametrize(
    "message",
    [
        CLOSED,
        "RuntimeError: Read error [127.0.0.1]:15065: Connection reset by peer",
        "torch.distributed.DistNetworkError: The client socket has failed to connect",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp: remote process exited",
    ],
)
def test_a_broken_connection_alone_is_told_as_following(message: str) -> None:
    _, told = first_to_fail([death(0, 0)], messages(r0=message)) or (None, "")
    assert told != message and is_lost_peer(told)


def test_an_exit_status_without_a_word_is_told_as_such() -> None:
    assert first_to_fail([death(1, 0, 7)], messages()) == (death(1, 0, 7), "exited with status 7")
    _, told = first_to_fail([death(1, 0)], messages(r1="ValueError: odd\nsecond line")) or (None, "")
    assert told == "ValueError: odd"


def fork(watch: DeathWatch, local_rank: int, act: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as in a rank that has only begun
        watch.report(local_rank)
        act()
        os._exit(0)
    return pid


def wait_until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_deaths(watch: DeathWatch, count: int) -> list[Death]:
    wait_until(lambda: len(watch.deaths()) >= count)
    return watch.deaths()


def test_real_deaths_are_seen_in_their_order_with_status_and_signal() -> None:
    pids: dict[int, int] = {}
    watch = DeathWatch(pids.__setitem__, follow_within_s=600)  # it is not to end any of them here
    watch.start()
    children = [
        fork(watch, 0, lambda: time.sleep(120)),
        fork(watch, 1, lambda: None),  # leaves with status 0: no death
        fork(watch, 2, lambda: time.sleep(120)),
        fork(watch, 3, lambda: os._exit(7)),
    ]
    assert [(one.local_rank, one.exit_code, one.signal) for one in wait_for_deaths(watch, 1)] == [(3, 7, None)]
    wait_until(lambda: len(pids) == len(children))  # one that dies before it has said who it is, no one can know
    os.kill(children[2], signal.SIGKILL)
    wait_for_deaths(watch, 2)
    os.kill(children[0], signal.SIGTERM)
    deaths = wait_for_deaths(watch, 3)
    assert [(one.local_rank, one.exit_code, one.signal) for one in deaths[1:]] == [(2, None, 9), (0, None, 15)]
    assert all(one.at.tzinfo is not None for one in deaths)
    assert pids == dict(enumerate(children))
    for child in children:  # the watch has left them for their parent to reap
        assert os.waitpid(child, 0)[0] == child


def test_a_rank_that_is_reaped_before_it_was_looked_at_has_died_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def reaped(*_: object) -> None:
        raise ChildProcessError

    monkeypatch.setattr(os, "waitid", reaped)
    watch = DeathWatch()
    watch.start()
    child = fork(watch, 1, lambda: os._exit(7))
    (found,) = wait_for_deaths(watch, 1)
    assert (found.local_rank, found.is_seen) == (1, False)
    os.waitpid(child, 0)
