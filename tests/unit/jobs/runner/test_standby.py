"""Launchers on standby for a restart. A script stands in for srun; a cluster test has the real one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from opsctl.jobs.runner.launch import Launch, trainer_words
from opsctl.jobs.runner.standby import Standby
from trainer.formats.attempt.attempt_records import Start

#: Leaves its words and what its stdin says, and writes an output file as the nodes do.
SRUN = """#!/bin/sh
echo "$@" > "$D/words"
echo "node output" > "$OPSCTL_ATTEMPT_FOLDER/x1.out"
cat > "$D/line"
touch "$D/over"
"""


def launch(folder: Path, port: int = 12_000) -> Launch:
    return Launch(
        step_script='exec "$@"',
        python=("python", "-P"),
        nodes=2,
        cpus_per_task=None,
        attempt_folder=folder,
        words=trainer_words(2, 2, "x1", port, folder, ["--lr", "1"]),
        variables={},
    )


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Standby]:
    srun = tmp_path / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)
    (tmp_path / "attempts" / "12").mkdir(parents=True)
    found = Standby(tmp_path, tmp_path / "attempts" / "12", after_s=0.0)
    yield found
    found.end()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def started(standby: Standby, folder: Path) -> None:
    """Have them on standby."""
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "D": str(folder)}
    standby.prepare(launch(folder / "attempts" / "12"), ("x1", "x2", "x3"), environment, lambda: True)
    assert standby.news() == []
    until((folder / "attempts" / ".standby-12" / "x1.out").exists)


def test_a_restart_gives_them_its_words_and_nodes_and_gets_their_output(standby: Standby, tmp_path: Path) -> None:
    started(standby, tmp_path)
    assert {"--nodes=3", "--overlap", "--nodelist=x1,x2,x3", "--wait=0"} <= set(
        (tmp_path / "words").read_text().split()
    )
    folder = tmp_path / "attempts" / "12"
    again = launch(folder, port=12_345)
    srun = standby.take(again, ("x1", "x3"))
    assert srun is not None and srun.wait(60) == 0
    line = msgspec.json.decode((tmp_path / "line").read_bytes(), type=Start)
    assert line.nodes == ("x1", "x3") and line.words == tuple(again.words[2:])
    assert line.variables["OPSCTL_ATTEMPT_FOLDER"] == str(folder)
    assert (folder / "x1.out").read_text() == "node output\n" and not (folder.parent / ".standby-12").exists()
    assert standby.take(again, ("x1", "x3")) is None, "they are taken once"


def test_nothing_is_started_before_the_training_trains_and_nothing_is_left_at_the_end(
    standby: Standby, tmp_path: Path
) -> None:
    standby.prepare(launch(tmp_path), ("x1",), {"PATH": str(tmp_path)}, lambda: False)
    standby.news()
    assert standby.take(launch(tmp_path), ("x1",)) is None and not (tmp_path / "words").exists()
    started(standby, tmp_path)
    standby.end()
    assert (tmp_path / "line").read_text() == "" and not (tmp_path / "attempts" / ".standby-12").exists()


def test_launchers_that_have_ended_are_not_taken_and_a_missing_srun_is_reported(
    standby: Standby, tmp_path: Path
) -> None:
    (tmp_path / "srun").write_text(SRUN.replace('cat > "$D/line"', "exit 1"))
    started(standby, tmp_path)
    until(lambda: standby.take(launch(tmp_path), ("x1",)) is None)
    (tmp_path / "srun").unlink()
    standby.prepare(launch(tmp_path), ("x1",), {"PATH": str(tmp_path), "D": str(tmp_path)}, lambda: True)
    (line,) = standby.news()
    assert "standby" in line and "srun" in line
