"""The heartbeat of a lease: it beats, is noticed to be lost, and keeps nothing waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.jobs.runner.own_lease import LeaseHeartbeat
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.lease import OwnLease, take
from trainer.formats.attempt.lease import OpenLease


@pytest.fixture
def own(tmp_path: Path) -> OwnLease:
    tmp_path.chmod(0o750)
    found = take(RunPaths(tmp_path), "a", 7, "ann", lambda _: None)
    assert isinstance(found, OwnLease)
    return found


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_heart_beats_while_the_block_lasts(own: OwnLease) -> None:
    def stamp() -> int:
        return own.paths.lease.stat().st_mtime_ns

    others = threading.active_count()
    with LeaseHeartbeat(own, every_s=0.02) as heartbeat:
        for _ in range(3):
            before = stamp()
            wait_for(lambda before=before: stamp() > before)  # type: ignore[misc]
        assert heartbeat.lost == "" and heartbeat.news() == []
    after = stamp()
    time.sleep(0.1)
    assert stamp() == after and threading.active_count() == others


def test_being_overtaken_is_noticed_and_is_the_last_heartbeat(own: OwnLease) -> None:
    others = threading.active_count()
    with LeaseHeartbeat(own, every_s=0.02) as heartbeat:
        assert isinstance(take(own.paths, "b", 8, "ben", lambda _: "no heartbeat for 180 s"), OwnLease)
        wait_for(lambda: heartbeat.lost)
        assert "job 8 of ben" in heartbeat.lost
        wait_for(lambda: threading.active_count() == others)


def test_a_heartbeat_that_fails_is_said_once_and_tried_again(own: OwnLease) -> None:
    away = own.paths.output.with_name("away")
    heartbeat = LeaseHeartbeat(own, every_s=0.02)
    own.paths.output.rename(away)
    heartbeat.start()
    said: list[str] = []

    def hear() -> list[str]:
        said.extend(heartbeat.news())
        return said

    wait_for(hear)
    time.sleep(0.2)
    assert len(hear()) == 1 and "heartbeat" in said[0] and str(own.paths.output) in said[0]
    away.rename(own.paths.output)
    wait_for(lambda: len(hear()) == 2)
    assert "heartbeat" in said[1] and str(own.paths.output) not in said[1] and not heartbeat.lost
    heartbeat.stop()


def test_a_file_system_that_hangs_keeps_nobody_waiting(own: OwnLease, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()
    really = OpenLease.read

    def hanging(opened: OpenLease) -> object:
        answers.wait(30)
        return really(opened)

    monkeypatch.setattr(OpenLease, "read", hanging)
    monkeypatch.setattr("opsctl.jobs.runner.own_lease.LeaseHeartbeat.end_wait_s", 0.1)
    began = time.monotonic()
    with LeaseHeartbeat(own, every_s=0.01) as heartbeat:
        time.sleep(0.1)
        assert heartbeat.news() == [] and not heartbeat.lost
    with pytest.raises(TimeoutError):
        own.end("released", wait_s=0.1)
    assert time.monotonic() - began < 25  # of the thirty that it hangs
    answers.set()
