"""A run is its id, its folder and its cluster: what a copy, a move and another SLURM_CONF are to a real Slurm."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.spec import plain
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import Training
from tests.printed_json import printed
from tests.tiny_run import write_run

LATER = ("--begin", "now+1day")


@dataclass(frozen=True)
class Shell(Opsctl):
    """opsctl in a shell that names no cluster, but may export SLURM_CONF."""

    conf: str | None = None

    def environment(self) -> dict[str, str]:
        base = {k: v for k, v in super().environment().items() if k != "OPSCTL_CLUSTER"}
        return {**base, "SLURM_CONF": self.conf} if self.conf else base


@pytest.fixture
def opsctl(local_cluster: RunningCluster) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder / "run")
        yield Opsctl(local_cluster, folder / "run")


def copied(opsctl: Opsctl) -> Opsctl:
    target = opsctl.folder.with_name("copy")
    shutil.copytree(opsctl.folder, target, symlinks=True)
    return Opsctl(opsctl.cluster, target)


def test_a_copied_folder_never_touches_the_originals_jobs_and_becomes_a_run_of_its_own(opsctl: Opsctl) -> None:
    chain, run_id = opsctl.submit(), opsctl.run_id()
    copy = copied(opsctl)

    refused = copy("cancel")
    assert refused.code == 1 and f"a copy of {opsctl.folder}/output" in refused.err
    refused = copy("kill-switch", "trigger")
    assert refused.code == 1 and "not triggered" in refused.err
    assert printed("queue", copy.ok("queue", "--json"))[0]["own"] is False
    assert f"a copy of {opsctl.folder}/output" in copy.ok("status") and "NOT SUBMITTED YET" in copy.ok("status")
    assert copy("submit", "--dry-run").code == 0
    assert opsctl.queue("%A") == [str(chain)]

    answer = copy("submit", *LATER)
    assert answer.code == 0, answer.err
    assert copy.run_id() != run_id == opsctl.run_id()
    assert [record["chain"] for record in copy.chains()] == [int(answer.out)]
    assert (copy.state / f"copied-from-{run_id}" / "chains.jsonl").read_text().count("\n") == 1
    copy.ok("cancel")
    assert opsctl.queue("%A") == [str(chain)]
    assert "a copy of" not in copy.ok("status") and "a copy of" not in opsctl.ok("status")


def test_a_moved_folder_goes_on_and_says_where_its_queued_tasks_look(opsctl: Opsctl) -> None:
    chain, run_id = opsctl.submit(), opsctl.run_id()
    old, new = opsctl.folder / "output", opsctl.folder.with_name("moved") / "output"
    opsctl.folder.rename(new.parent)
    moved = Opsctl(opsctl.cluster, new.parent)
    said = " ".join(moved.ok("status").split())
    link = f"ln -s {new} {old}"
    assert f"{chain}_[1-3%1] " in said and link in said

    refused = moved("revise")
    assert refused.code == 1 and "[run] output" in refused.err
    assert str(new) in refused.err and str(old) in refused.err
    old.parent.mkdir()
    old.symlink_to(new)
    assert link not in " ".join(moved.ok("status").split())
    old.unlink()
    old.parent.rmdir()
    moved.ok("revise", "--resubmit")
    (queued,) = set(moved.queue("%A"))
    assert queued != str(chain) and moved.run_id() == run_id
    assert moved.chains()[-1]["output"] == str(new)
    assert link not in " ".join(moved.ok("status").split()) and not old.exists()


def test_an_exported_configuration_is_the_runs_in_every_shell_and_a_second_one_is_another_cluster(
    local_cluster: RunningCluster, cluster_folder: Path
) -> None:
    other = lifecycle.up(plain("other", nodes=2), cluster_folder)
    here, there = local_cluster.cluster.slurm_conf, other.cluster.slurm_conf
    with open_folder() as folder:
        write_run(folder)
        exporting, plainly, elsewhere = (Shell(local_cluster, folder, conf) for conf in (here, None, there))
        chain = int(exporting.ok("submit", *LATER))
        record = json.loads((exporting.state / "cluster.json").read_text())
        assert set(record) == {"name", "controller", "slurm_conf"}
        assert (record["name"], record["slurm_conf"]) == ("test", here)
        for shell in (plainly, elsewhere):
            assert "WAITING" in shell.ok("status")
        refused = elsewhere("submit", *LATER, "--array", "1-2%1")
        assert refused.code == 1 and "cluster test " in refused.err and record["controller"] in refused.err
        assert f"{chain}_[1-3%1]" in refused.err and not local_cluster.environment().get("OPSCTL_CLUSTER")
        # Another file that configures the very same cluster is no other cluster.
        again = folder / "same.conf"
        again.write_text(Path(str(here)).read_text())
        for name in ("gres.conf", "cgroup.conf"):
            shutil.copy(Path(str(here)).with_name(name), folder / name)
        beside = Shell(local_cluster, folder, str(again))
        assert f"{chain}_[1-3%1] PENDING" in beside("submit", *LATER).err
        assert int(beside.ok("submit", *LATER, "--after", "auto")) > chain
        plainly.ok("cancel")
        assert int(elsewhere.ok("submit", *LATER, "--array", "1-2%1")) > 0
        assert json.loads((exporting.state / "cluster.json").read_text())["slurm_conf"] == there


def test_a_lost_id_is_found_again_from_the_queue(opsctl: Opsctl) -> None:
    chain, run_id = opsctl.submit(), opsctl.run_id()
    for name in ("run-id", "identity.json"):
        (opsctl.state / name).unlink()
    assert "WAITING" in opsctl.ok("status")
    refused = opsctl("submit", *LATER)
    assert refused.code == 1 and f"{chain}_[1-3%1] PENDING" in refused.err
    assert opsctl.run_id() == run_id


def test_the_job_itself_goes_by_its_environment_and_not_by_the_record(local_cluster: RunningCluster) -> None:
    with open_folder() as folder:
        training = Training(Shell(local_cluster, folder, local_cluster.cluster.slurm_conf))
        training.write(ranks=1)
        training.submit("1")
        record = training.paths.cluster
        record.write_text(json.dumps({"name": "trap", "slurm_conf": "/nowhere", "bin_folders": [str(folder)]}))
        training.wait_for_iteration(2)
        assert os.path.lexists(training.paths.lease)
        (folder / "output" / "kill-switch").touch()
        wait_until(lambda: "kill switch" in training.log(), 60, "the training to leave")


def test_a_training_whose_folder_is_moved_is_still_stopped_and_its_end_is_on_record(
    local_cluster: RunningCluster,
) -> None:
    with open_folder() as folder:
        training = Training(Opsctl(local_cluster, folder / "run"))
        training.write(ranks=1)
        chain = training.submit("1")
        training.wait_for_iteration(3)
        (folder / "run").rename(folder / "moved")
        moved = Training(Opsctl(local_cluster, folder / "moved"))
        said = moved.opsctl("kill-switch", "trigger")
        assert said.code == 0 and re.search(r"has left|saving", said.err), said.err
        moved.wait_until_left(chain)
        assert not (folder / "run").exists()
        (attempt,) = moved.attempts()
        assert attempt["reason"] == "kill-switch", attempt
        iteration = int((moved.paths.checkpoints / "latest").read_text().removeprefix("global_step"))
        assert iteration == attempt["iteration_at_end"] >= 3
        assert "kill switch" in moved.log()
