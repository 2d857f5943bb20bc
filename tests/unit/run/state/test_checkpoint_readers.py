"""Test who reads a checkpoint."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from opsctl.core.account import account_and_host
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.checkpoint_readers import being_read, reading
from tests.killed_in_python import killed_at_every_step
from trainer.formats.attempt.lease import SILENT_S


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path / "output")
    found.state.mkdir(parents=True)
    found.output.chmod(0o755)
    found.state.chmod(0o755)
    return found


def reader(paths: RunPaths, iteration: int) -> int:
    """A process that reads that checkpoint until it is killed; its id."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            with reading(paths, iteration, "backup"):
                os.write(write_end, b".")
                signal.pause()
        finally:
            os._exit(1)
    os.close(write_end)
    said = os.read(read_end, 1)
    os.close(read_end)
    assert said == b"."
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def marks(paths: RunPaths) -> list[Path]:
    return sorted(paths.reading.glob("*"))


def age(mark: Path, seconds: float) -> None:
    then = mark.stat().st_mtime - seconds
    os.utime(mark, (then, then))


def test_a_checkpoint_is_being_read_for_as_long_as_the_block_lasts_and_by_all_that_read_it(paths: RunPaths) -> None:
    assert being_read(paths) == {}
    with reading(paths, 10, "backup"):
        with reading(paths, 10, "hub"), reading(paths, 7, "hub"):
            assert set(being_read(paths)) == {7, 10}
        assert set(being_read(paths)) == {10}
    assert being_read(paths) == {} and marks(paths) == []


def test_another_process_sees_who_and_why_and_a_killed_reader_reads_no_more(paths: RunPaths) -> None:
    child = reader(paths, 10)
    try:
        assert being_read(paths) == {10: f"backup by {account_and_host()}"}
    finally:
        kill(child)
    (mark,) = marks(paths)
    age(mark, SILENT_S + 10)
    assert being_read(paths) == {}
    with reading(paths, 20, "backup"):
        assert [one.name.partition(".")[0] for one in marks(paths)] == ["20"], "what the dead left is cleared away"


def test_a_mark_of_another_host_lives_by_its_heartbeat_alone(paths: RunPaths) -> None:
    paths.reading.mkdir()
    mark = paths.reading / "10.4711.0badcafe.far.away"
    mark.write_text("backup by ada@far.away")
    assert being_read(paths) == {10: "backup by ada@far.away"}
    age(mark, SILENT_S + 10)
    assert being_read(paths) == {}


def test_a_mark_beats(paths: RunPaths) -> None:
    with reading(paths, 10, "backup", every_s=0.01):
        (mark,) = marks(paths)
        age(mark, SILENT_S + 10)
        while mark.stat().st_mtime < (paths.state.stat().st_mtime - SILENT_S):
            pass
        assert set(being_read(paths)) == {10}


def test_what_is_no_mark_and_what_somebody_has_put_there_counts_for_nothing(paths: RunPaths) -> None:
    paths.reading.mkdir()
    for name in ("readme", "10", "-1.4711"):
        (paths.reading / name).write_text("")
    (paths.reading / "20.1").symlink_to("readme")
    assert being_read(paths) == {}


def test_killed_at_any_step_it_leaves_nothing_that_lives(paths: RunPaths) -> None:
    steps = 0

    def read_one() -> None:
        with reading(paths, 10, "backup"):
            pass

    for steps in killed_at_every_step(read_one):
        for mark in marks(paths):
            age(mark, SILENT_S + 10)
        assert being_read(paths) == {}, steps
    assert steps >= 2 and marks(paths) == []
