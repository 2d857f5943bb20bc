"""The kill switch on a running, a queued and a starting task of a real training."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.core.files.state_files import append_bytes
from opsctl.run.config.paths import RunPaths
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster
from tests.cluster.trainings import Training


@pytest.fixture
def training(local_cluster: RunningCluster) -> Iterator[Training]:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder))
        training.write()
        yield training


def test_a_running_task_saves_and_leaves_queued_ones_leave_at_once_and_the_next_goes_on(training: Training) -> None:
    training.write(ranks=4)
    chain = training.submit("1-3%1")
    training.wait_for_iteration(3)
    pulse = threading.Thread(target=_append_pulses, args=(training.paths.main_log, 200))
    pulse.start()
    _check_where_the_ranks_run(training)
    triggered = training.opsctl("kill-switch", "trigger", "--reason", "a test")
    assert triggered.code == 0, triggered.err
    training.wait_until_left(chain)
    pulse.join()
    first, second, third = training.recorded()
    saved = first["iteration_at_end"]
    assert (first["reason"], first["exit_code"], first["checkpoint_at_end"]) == ("kill-switch", 0, saved)
    assert saved >= 3 and training.iterations()[-1] == saved
    # So small a training may have left before anyone has read that it is about to.
    assert re.search(rf"job {chain}_1 (seen|has left) at iteration {saved}\b", triggered.err)
    assert first["kill_switch_inode"] == training.paths.output.stat().st_ino
    for short in (second, third):
        assert (short["reason"], short["iteration_at_start"], short["checkpoint_at_end"]) == (
            "kill-switch",
            saved,
            saved,
        )
    assert set(training.ends(chain).values()) == {("COMPLETED", 0)}
    stamp = r"datetime: [\d-]{10} [\d:]{8} [+-]\d\d:\d\d"
    line = rf"\[Detected kill switch at {training.paths.kill_switch}\. Exiting\] {stamp}"
    assert len(re.findall(line, training.log())) == 3
    _check_that_no_line_is_split(training, 200)

    training.opsctl.ok("kill-switch", "deactivate")
    before = len(training.iterations())
    training.submit("1-1")
    training.wait_for_iteration(saved + 1, after_lines=before)
    assert training.iterations()[before] == saved + 1
    training.paths.kill_switch.touch()
    training.wait_for_log("END TIME:", 2)
    fourth = training.attempts()[3]
    assert (fourth["reason"], fourth["iteration_at_start"]) == ("kill-switch", saved)


def test_a_training_whose_folder_was_moved_sees_the_switch_in_its_new_place(training: Training) -> None:
    training.write(ranks=1)
    chain = training.submit("1-1")
    training.wait_for_iteration(1)
    old, run_file = training.paths.output, training.opsctl.folder / "run.toml"
    old.rename(old.with_name("moved"))
    run_file.write_text(run_file.read_text().replace('output = "output"', 'output = "moved"'))
    triggered = training.opsctl("kill-switch", "trigger")
    assert triggered.code == 0, triggered.err
    assert re.search(rf"job {chain}_1 (seen|has left) at iteration \d", triggered.err)
    training.wait_until_left(chain)
    moved = RunPaths(old.with_name("moved"))
    assert (moved.checkpoints / "latest").exists() and not old.exists()


def _check_where_the_ranks_run(training: Training) -> None:
    """The map of ranks, one output file per node, and `[env]` in a rank's own environment."""
    attempt = training.first_attempt()
    places = [training.rank(attempt["job_id"], rank) for rank in range(4)]
    assert [place["node"] for place in places] == [node for node in attempt["nodes"] for _ in range(2)]
    assert [place["gpu"] for place in places] == ["0", "1"] * 2
    folder = training.paths.attempt_folder(attempt["job_id"])
    assert {path.stem for path in folder.glob("*.out")} == set(attempt["nodes"])
    environment = Path(f"/proc/{places[3]['pid']}/environ").read_bytes().split(b"\0")
    assert b"OMP_NUM_THREADS=1" in environment


def _append_pulses(path: Path, number: int) -> None:
    for count in range(number):
        append_bytes(path.parent, path, b"[2026-11-21 08:00:00] PULSE: tiny is running for %d\n" % count)


def _check_that_no_line_is_split(training: Training, pulses: int) -> None:
    lines = training.log().splitlines()
    whole = re.compile(r"\[2026-11-21 08:00:00\] PULSE: tiny is running for \d+")
    assert sum(1 for line in lines if "PULSE" in line) == sum(1 for line in lines if whole.fullmatch(line)) == pulses
    assert sum(1 for line in lines if re.search(r"iteration +\d+/", line)) == len(training.iterations())
    assert training.attempts()[0]["ranks"][3]["rank"] == 3
