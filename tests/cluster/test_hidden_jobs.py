"""A run whose jobs are a colleague's, on a Slurm that shows everybody only his own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest

from opsctl.core.timestamps import now
from opsctl.run.attempts.events import Attempt, append_opened, read
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE
from opsctl.run.config.paths import RunPaths
from opsctl.slurm.backends import client_for
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.tiny_run import write_run
from tests.users import as_user

GROUP = f"octeam{os.getpid()}"


@pytest.fixture
def hiding_cluster(local_cluster: RunningCluster) -> Iterator[RunningCluster]:
    conf = local_cluster.places.slurm_conf
    before = conf.read_text()
    try:
        conf.write_text(before + "PrivateData=jobs\n")
        local_cluster.run("scontrol", "reconfigure")
        yield local_cluster
    finally:
        conf.write_text(before)
        local_cluster.run("scontrol", "reconfigure")


@pytest.fixture
def opsctl(hiding_cluster: RunningCluster) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder, group=GROUP)
        yield Opsctl(hiding_cluster, folder)


def test_a_colleagues_hidden_chain_is_neither_missed_nor_closed_nor_run_beside(
    opsctl: Opsctl, unix_user: Callable[..., str]
) -> None:
    ann, ben = (unix_user(name, groups_of=[GROUP]) for name in ("ann", "ben"))
    cluster, paths = opsctl.cluster, RunPaths(opsctl.folder / "output")
    submitted = opsctl.says(ann, "submit", "--begin", "now+1day")
    assert submitted.code == 0, submitted.err
    hers = submitted.out.strip()
    assert as_user(ben, lambda: client_for(cluster.cluster).hides_others_jobs())
    assert not client_for(cluster.cluster).hides_others_jobs()

    status = opsctl.says(ben, "status")
    assert status.code == 0 and "UNKNOWN" in status.out and CANNOT_SEE in status.out, status
    assert f"chain {hers} of {ann}" in status.out and "NOT IN THE QUEUE" not in status.out
    told = json.loads(opsctl.says(ben, "status", "--json").out)["status"]
    assert told["state"] == "unknown" and told["unseen"] == [{"array_job_id": int(hers), "user": ann}]
    assert "WAITING" in opsctl.says(ann, "status").out and "WAITING" in opsctl.ok("status")

    watch = opsctl.says(ben, "watch", "training")
    assert watch.code == 3 and "ALERT" not in watch.out and CANNOT_SEE in watch.out
    assert CANNOT_SEE in opsctl.says(ben, "queue").err
    refill = opsctl.says(ben, "refill")
    assert refill.code == 1 and f"chain {hers} of {ann} " in refill.out
    cancelled = opsctl.says(ben, "cancel")
    assert cancelled.out == "" and f"chain {hers} of {ann} " in cancelled.err

    opened = Attempt(number=1, id="hers", job_id=int(hers), array_job_id=int(hers), user=ann, opened_at=now())
    as_user(ann, lambda: append_opened(paths, opened))
    attempts = opsctl.says(ben, "attempts")
    assert "not known" in attempts.out and CANNOT_SEE in attempts.err
    assert read(paths)[0].is_open

    refused = opsctl.says(ben, "submit", "--begin", "now+1day")
    assert refused.code == 1 and "tiny " in refused.err and CANNOT_SEE in refused.err
    behind = opsctl.says(ben, "submit", "--begin", "now+1day", "--after", "auto")
    assert behind.code == 0, behind.err
    waits = dict(row.split("|") for row in opsctl.queue("%A|%E"))
    assert f"afterany:{hers}_*" in waits[behind.out.strip()] and hers in waits


def test_of_a_hidden_chain_that_has_ended_a_new_one_does_not_wait(
    opsctl: Opsctl, unix_user: Callable[..., str]
) -> None:
    ann, ben = (unix_user(name, groups_of=[GROUP]) for name in ("ann", "ben"))
    hers = opsctl.says(ann, "submit", "--begin", "now+1day").out.strip()
    opsctl.cluster.run("scancel", hers)
    opsctl.cluster.wait_for_state(int(hers), "CANCELLED")
    behind = opsctl.says(ben, "submit", "--begin", "now+1day", "--after", "auto")
    assert behind.code == 0 and CANNOT_SEE in behind.err and hers in behind.err
    wait_until(lambda: opsctl.queue("%E %r") == ["(null) BeginTime"], 20, "Slurm to see that nothing is waited for")
