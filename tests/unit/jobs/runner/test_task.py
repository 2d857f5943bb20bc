"""Test what a task makes of a revision and its chain's arguments, before anything runs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.runner.main_log import MainLog
from opsctl.jobs.runner.task import Allocation, Task, understood
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import revisions
from opsctl.slurm.backends import client_for
from opsctl.slurm.cluster import Cluster
from tests.tiny_run import ready, write_checkpoint, write_run

NODES = ("x1", "x2")


def task_in(folder: Path, *one_off: str) -> Task:
    """The task of a job on two nodes, as it finds what is published in `folder`."""
    paths = RunPaths(folder / "output")
    revision = revisions.newest(paths)
    assert revision is not None
    return Task(
        paths=paths,
        cluster=Cluster(),
        client=client_for(Cluster()),
        allocation=Allocation(12, 11, "1", 0, NODES, "ann"),
        revision=revision,
        one_off=one_off,
        options=understood(revision, one_off, len(NODES)),
        submitted_at=datetime.now(UTC),
        log=MainLog(paths.output, paths.main_log, copy_to_fd=None),
    )


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The folder of a run that was published."""
    revisions.publish(ready(load_run_file(write_run(tmp_path, train_samples=4000))))
    return tmp_path


@pytest.mark.parametrize("spelling", [("--kill-switch", "/x"), ("--kill_switch_path=/x",), ("--kill=/x",)])
def test_the_task_looks_for_the_kill_switch_where_the_trainer_does(published: Path, spelling: tuple[str, ...]) -> None:
    assert task_in(published).kill_switch == published / "output" / "kill-switch"
    assert task_in(published, *spelling).kill_switch == Path("/x")


@pytest.mark.parametrize(
    ("one_off", "is_over"),
    [((), False), (("--train-sam", "80"), True), (("--train_samples=88",), False), (("--train-samples", "87"), True)],
)
def test_the_task_is_over_when_the_trainer_has_nothing_left_to_do(
    published: Path, one_off: tuple[str, ...], is_over: bool
) -> None:
    write_checkpoint(published, 10, 80)
    assert task_in(published, *one_off).is_finished() is is_over


def test_arguments_of_another_release_leave_the_runs_kill_switch_to_look_at(published: Path) -> None:
    write_checkpoint(published, 10, 4000)
    task = task_in(published, "--of-another-release")
    assert isinstance(task.options, OpsctlError)
    assert "\n" not in str(task.options) and "--of-another-release" in str(task.options)
    assert task.kill_switch == published / "output" / "kill-switch" and not task.is_finished()


@pytest.mark.parametrize("checkpoints", ["no latest", "latest"])
def test_beside_checkpoints_the_task_does_not_start_from_nothing(published: Path, checkpoints: str) -> None:
    write_checkpoint(published, 5, 40)
    write_checkpoint(published, 10, 80)
    assert task_in(published).checkpoint_problem() is None
    if checkpoints == "latest":
        write_checkpoint(published, 20, 160)
        (published / "output" / "checkpoints" / "global_step20" / "manifest.json").unlink()
    else:
        (published / "output" / "checkpoints" / "latest").unlink()
    problem = task_in(published).checkpoint_problem() or ""
    assert "global_step10" in problem and "opsctl checkpoints repoint" in problem
    assert task_in(published, "--load", str(published / "nothing")).checkpoint_problem() is None


@pytest.mark.parametrize("file", ["run.json", "trainer-arguments.json"])
def test_a_revision_that_cannot_be_read_is_no_reason_not_to_look_at_the_kill_switch(published: Path, file: str) -> None:
    revision = revisions.newest(RunPaths(published / "output"))
    assert revision is not None
    (revision.folder / file).write_text(json.dumps({"of": "another release"}))
    task = task_in(published)
    assert task.kill_switch == published / "output" / "kill-switch"
    assert isinstance(task.options, OpsctlError) and task.name in ("tiny", str(published / "output"))
