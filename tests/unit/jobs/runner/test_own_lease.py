"""Waiting for the lease: a real file, times of tenths of seconds, and a holder that is another process's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from opsctl.jobs.runner import own_lease
from opsctl.jobs.runner.main_log import MainLog
from opsctl.jobs.runner.own_lease import LeaseHeartbeat, WaitPolicy, Watched, goes_on, wait_for_turn
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import lease
from opsctl.run.state.lease import Held, OwnLease
from trainer.formats.attempt.lease import Holder

#: For a heartbeat that stands still, and for one that goes on, however late a busy machine lets it.
QUICK = WaitPolicy(silent_s=0.6, alive_s=60, poll_s=0.05, ask_s=0.1)
LASTING = WaitPolicy(silent_s=60, alive_s=1.0, poll_s=0.05, ask_s=0.1)
HOLDER = Holder(3, "attempt-of-7", 7, "ann", "x9")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    tmp_path.chmod(0o750)
    return RunPaths(tmp_path)


@pytest.fixture
def holder(paths: RunPaths) -> OwnLease:
    found = lease.take(paths, "attempt-of-7", 7, "ann", lambda _: None)
    assert isinstance(found, OwnLease)
    return found


def attempt(reason: str | None) -> Attempt:
    return Attempt(number=1, id="attempt-of-7", job_id=7, reason=reason)


def wait(
    paths: RunPaths,
    attempts: Callable[[bool], Sequence[Attempt]] = lambda _: [],
    leaves: Callable[[], bool] = lambda: False,
    requeued_id: int | None = None,
    patience: WaitPolicy = LASTING,
) -> OwnLease | Held | None:
    def take(why_over: Callable[[Held], str | None]) -> OwnLease | Held:
        return lease.take(paths, "attempt-of-8", 8, "ben", why_over, settle_s=0.1)

    log = MainLog(paths.output, paths.main_log, copy_to_fd=None)
    return wait_for_turn(take, attempts, requeued_id, log, leaves, patience)


def log_of(paths: RunPaths) -> str:
    return paths.main_log.read_text() if paths.main_log.exists() else ""


def test_a_free_lease_is_taken_without_a_word(paths: RunPaths) -> None:
    found = wait(paths)
    assert isinstance(found, OwnLease) and found.holder.number == 1 and log_of(paths) == ""


def test_a_heartbeat_that_was_watched_to_stand_still_ends_the_holding_whatever_its_age(
    paths: RunPaths, holder: OwnLease
) -> None:
    os.utime(paths.lease, (1, 1))  # decades ago by a user's clock: that alone ends nothing
    began = time.monotonic()
    found = wait(paths, patience=QUICK)
    assert isinstance(found, OwnLease) and found.holder.number == holder.holder.number + 1
    assert time.monotonic() - began >= QUICK.silent_s
    said = log_of(paths)
    assert "job 7 of ann" in said and "number 1" in said and "number 2" in said


def test_a_heartbeat_that_goes_on_is_waited_for_no_longer_than_stated(paths: RunPaths, holder: OwnLease) -> None:
    began = time.monotonic()
    with LeaseHeartbeat(holder, every_s=0.05):
        found = wait(paths)
    assert isinstance(found, Held) and found.holder == holder.holder
    assert LASTING.alive_s <= time.monotonic() - began < 50  # of the sixty of a silent one
    assert log_of(paths).count("job 7 of ann") == 1


def test_slurms_word_about_the_holders_job_ends_the_holding_at_once(paths: RunPaths, holder: OwnLease) -> None:
    asked = []

    def attempts(ask: bool) -> list[Attempt]:
        asked.append(ask)
        return [attempt(Ending.NODE_FAILURE if True in asked else None)]

    with LeaseHeartbeat(holder, every_s=0.05):
        assert isinstance(wait(paths, attempts), OwnLease)
    assert True in asked and asked.count(True) == 1
    assert "node-failure" in paths.lease.read_text()


def test_a_requeued_jobs_own_earlier_life_has_ended(paths: RunPaths, holder: OwnLease) -> None:
    with LeaseHeartbeat(holder, every_s=0.05):
        assert isinstance(wait(paths, requeued_id=7), OwnLease)


def test_a_kill_switch_ends_the_waiting(paths: RunPaths, holder: OwnLease) -> None:
    with LeaseHeartbeat(holder, every_s=0.05):
        assert wait(paths, leaves=lambda: True) is None
    assert paths.lease.read_text().count("\n") == 1


def test_a_heartbeat_stands_still_from_when_it_was_first_seen_so() -> None:
    watched = Watched()
    assert watched.still_s(Held(HOLDER, 5), 100.0) == 0
    assert watched.still_s(Held(HOLDER, 5), 130.0) == 30
    assert watched.still_s(Held(HOLDER, 4), 140.0) == 0  # also one that went back has moved
    assert watched.still_s(Held(Holder(4, "b"), 4), 150.0) == 0
    assert watched.still_s(Held(Holder(4, "b"), 4), 151.0) == 1


@pytest.mark.parametrize(
    ("waited_s", "still_s", "is_over"), [(299, 0, False), (300, 0, True), (300, 61, False), (470, 179, False)]
)
def test_a_heart_that_may_just_have_stopped_is_watched_to_the_end(
    waited_s: float, still_s: float, is_over: bool
) -> None:
    assert goes_on(waited_s, still_s, own_lease.WaitPolicy()) is is_over
