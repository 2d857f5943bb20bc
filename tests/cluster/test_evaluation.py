"""`opsctl evaluate --job` on a real Slurm: one job per checkpoint for all users, killed, continued and reported.

The export and the curves are the trainer's own; an lm-eval stands in that answers, fails and waits as a test says.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.run.config.paths import RunPaths
from tests.cluster.commands import Answer, Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.printed_json import printed
from tests.unit.jobs.evaluation.evaluated_runs import a_run, checkpoint_of_a_model, paths_of, ran

STEP = 20
GROUP = f"ocjudges{os.getpid()}"
#: For what comes by itself, on however busy a machine, seconds.
LONG_S = 240


class Desk:
    """A user's run with one checkpoint that is due."""

    def __init__(self, cluster: RunningCluster, folder: Path, group: str = "") -> None:
        self.cluster = cluster
        self.folder = a_run(folder / "run", tasks=["cats", "sst2", "unicorns", "dogs"], more=f"every = {STEP}")
        self.opsctl = Opsctl(cluster, self.folder)
        checkpoint_of_a_model(folder, self.paths.checkpoints, STEP)

    @property
    def paths(self) -> RunPaths:
        return paths_of(self.folder)

    def share_with(self, group: str) -> None:
        """The run is a group's: its members write into what belongs to it."""
        text = (self.folder / "run.toml").read_text()
        (self.folder / "run.toml").write_text(text.replace("[run]\n", f'[run]\ngroup = "{group}"\n', 1))
        self.folder.chmod(0o1777)  # where people's own state is
        for one in (self.paths.output, self.paths.checkpoints):
            self.cluster.run("chgrp", group, one)
            one.chmod(0o2775)

    def tell(self, task: str, words: str) -> None:
        """Set the behaviour of lm-eval."""
        (self.folder / "told" / task).write_text(words)

    def asked_at_once(self) -> list[Answer]:
        children = [self.opsctl.start("evaluate", "--job", "--time=10:00") for _ in range(2)]
        said = [child.communicate(timeout=LONG_S) for child in children]
        return [Answer(child.returncode, *both) for child, both in zip(children, said, strict=True)]

    def jobs(self) -> list[int]:
        """Those of Slurm's that are an evaluation's."""
        rows = self.cluster.run("squeue", "-h", "-o", "%A %k").stdout.splitlines()
        parted = [row.partition(" ") for row in rows]
        return [int(job) for job, _, comment in parted if comment.startswith("opsctl errand=")]

    def wait_until_gone(self, job: int) -> None:
        live = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        wait_until(lambda: self.cluster.job_state(job) not in live, LONG_S, f"job {job} to end")

    def output(self, job: int) -> str:
        """Return what a job says."""
        return self.opsctl("jobs", "logs", str(job)).out

    def told(self) -> str:
        found: dict[str, Any] = printed("status", self.opsctl.ok("status", "--json"))
        return str(found["evaluation"]["told"])


@pytest.fixture
def desk(local_cluster: RunningCluster) -> Iterator[Desk]:
    with open_folder() as folder:
        yield Desk(local_cluster, folder)
        local_cluster.cancel_everything()


def test_whoever_asks_there_is_one_job_and_one_that_was_killed_is_gone_on_with(
    desk: Desk, unix_user: Callable[..., str]
) -> None:
    ann = unix_user("ann", groups_of=[GROUP])
    desk.share_with(GROUP)
    desk.tell("dogs", "wait")
    all_nodes = desk.cluster.sbatch("sleep 3600", "--nodes=4", "--exclusive")
    anns = desk.opsctl.says(ann, "evaluate", "--job", "--time=10:00")
    assert anns.code == 0, anns.err
    for answer in desk.asked_at_once():
        assert answer.code == 0 and answer.out == "", answer.err
        assert re.search(rf"global_step{STEP}: .*\b{ann}@", answer.err), answer.err
    assert desk.jobs() == [int(anns.out)]

    desk.cluster.run("scancel", anns.out.strip())
    desk.wait_until_gone(int(anns.out))
    first, second = sorted(desk.asked_at_once(), key=lambda answer: answer.out)
    assert (first.out, desk.jobs()) == ("", [int(second.out)]) and f"global_step{STEP}: " in first.err
    assert desk.opsctl.says(ann, "evaluate", "--job").out == ""
    assert re.search(rf"\b{STEP}\b", desk.told())

    desk.cluster.run("scancel", str(all_nodes))
    wait_until((desk.folder / "told" / "waits").exists, LONG_S, "lm-eval to come to the last task")
    again = desk.opsctl("evaluate", "--job")
    assert again.out == "" and f"global_step{STEP}: " in again.err and desk.jobs() == [int(second.out)]
    desk.cluster.run("scancel", "--full", "--signal=KILL", second.out.strip())
    desk.wait_until_gone(int(second.out))
    assert ran(desk.folder) == ["cats", "sst2", "dogs"]

    desk.tell("dogs", "no such data set")
    (failed,) = printed("evaluate", desk.opsctl.ok("evaluate", "--job", "--json"))
    desk.wait_until_gone(failed["job_id"])
    assert ran(desk.folder) == ["cats", "sst2", "dogs", "dogs"]
    why = re.compile(r"1 failed: dogs \(RuntimeError: no such data set\); 1 .*: unicorns")
    assert why.search(desk.output(failed["job_id"])) and why.search(desk.told())
    assert re.search(rf"\b{STEP} failed, 2 of 4\b", desk.told())
    results = json.loads((desk.paths.evaluation(STEP) / "results.json").read_text())
    states = {one["name"]: one["state"] for one in results["tasks"]}
    assert states == {"cats": "done", "sst2": "done", "unicorns": "missing", "dogs": "failed"}
    assert len(list((desk.paths.tensorboard / "lm-eval").iterdir())) == 1
    assert not list(desk.paths.exported.iterdir())


def test_a_job_says_by_name_that_there_is_no_lm_eval_or_no_checkpoint_any_more(desk: Desk) -> None:
    all_nodes = desk.cluster.sbatch("sleep 3600", "--nodes=4", "--exclusive")
    job = int(desk.opsctl.ok("evaluate", "--job"))
    gone = desk.paths.checkpoints / f"global_step{STEP}"
    gone.rename(desk.folder / gone.name)
    desk.cluster.run("scancel", str(all_nodes))
    desk.wait_until_gone(job)
    assert f"global_step{STEP} " in desk.output(job) and not ran(desk.folder)
    (desk.folder / gone.name).rename(gone)

    (desk.folder / "python" / "lm_eval" / "__init__.py").write_text("raise ImportError('not here')")
    job = int(desk.opsctl.ok("evaluate", "--job"))
    desk.wait_until_gone(job)
    why = re.compile(r"lm-eval .*not here.*\[evaluation\] python")
    assert why.search(desk.output(job)) and why.search(desk.told())
