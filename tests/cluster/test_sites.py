"""Test what sites do to a Slurm, each on a real one: plug-ins, GPUs of two kinds, reservations, maintenance,
preemption.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.installation import Installation
from opsctl.local.cluster.spec import NodeGroup, Partition, plain
from opsctl.slurm.backends import client_for
from opsctl.slurm.states import End
from opsctl.slurm.types import job_outcome
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, guarded_folder, wait_until
from tests.cluster.watched_runs import WatchedRun, make_run
from tests.tiny_run import write_run

A100 = NodeGroup("a", 2, 8, "a100", cpus=32, memory_mib=65536)
V100 = NodeGroup("v", 2, 4, "v100", cpus=32, memory_mib=65536)
#: One partition's jobs make way for the other's, and have three seconds for it.
PREEMPTION = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=CANCEL",
    "JobSubmitPlugins=lua",
    f"PartitionName=cheap Nodes={V100.folded} PriorityTier=1 PreemptMode=CANCEL GraceTime=3 MaxTime=INFINITE State=UP",
    f"PartitionName=dear Nodes={V100.folded} PriorityTier=9 PreemptMode=OFF MaxTime=INFINITE State=UP",
)
#: What a site that gave up a partition has: jobs for `old` go to `main`, those for `closed` nowhere.
PLUG_IN = """
function slurm_job_submit(job, partitions, uid)
    if job.partition == "old" then job.partition = "main" end
    if job.partition == "closed" then
        slurm.log_user("the partition closed is closed; ask helpdesk@site for main")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
SPEC = replace(
    plain("site"),
    shape="a site's",
    node_groups=(A100, V100),
    partitions=(Partition("main", (A100.folded, V100.folded), is_default=True),),
    extra_slurm_conf=PREEMPTION,
)


@pytest.fixture(scope="module")
def site(slurm: Installation) -> Iterator[RunningCluster]:
    with guarded_folder() as folder:
        (folder / "job_submit.lua").write_text(PLUG_IN)
        up = lifecycle.up(SPEC, folder)
        yield RunningCluster(up.folder, up.cluster, slurm)


@pytest.fixture
def opsctl(site: RunningCluster) -> Iterator[Opsctl]:
    with open_folder() as folder:
        write_run(folder)
        yield Opsctl(site, folder)
    site.run("scancel", *site.run("squeue", "-h", "-o", "%A").stdout.split(), check=False)


@pytest.fixture
def run(opsctl: Opsctl) -> Iterator[WatchedRun]:
    with open_folder() as folder:
        yield make_run(opsctl.cluster, folder)


def test_a_plug_in_that_moves_a_job_is_followed_and_one_that_refuses_is_quoted(opsctl: Opsctl) -> None:
    write_run(opsctl.folder, slurm='partition = "old"')
    opsctl.submit()
    assert opsctl.queue("%P") == ["main"] and "on 'main'" in opsctl.ok("watch", "training")
    opsctl.ok("cancel")
    write_run(opsctl.folder, slurm='partition = "closed"')
    refused = opsctl("submit")
    assert refused.code == 1 and "the partition closed is closed; ask helpdesk@site for main" in refused.last_line
    assert opsctl.queue("%P") == [] and len(opsctl.chains()) == 1


def test_gpus_of_two_kinds_are_asked_for_by_their_type(opsctl: Opsctl) -> None:
    for gpu_type, nodes in (("a100", "a[1-2]"), ("v100", "v[1-2]")):
        write_run(opsctl.folder, slurm=f'gpu_type = "{gpu_type}"')
        assert f"on nodes {nodes} in" in opsctl.cluster.would_start(opsctl.ok("submit", "--dry-run"))
    path = write_run(opsctl.folder, nodes=1, slurm='gpu_type = "v100"')
    path.write_text(path.read_text().replace("gpus_per_node = 2", "gpus_per_node = 8"))
    refused = opsctl("submit")
    assert refused.code == 1 and "gpu_type" in refused.last_line, refused


def test_a_node_may_be_had_alone(opsctl: Opsctl) -> None:
    write_run(opsctl.folder, slurm='extra = ["--exclusive"]')
    chain = opsctl.submit()
    assert opsctl.queue("%A %h") == [f"{chain} NO"]


def test_an_array_of_more_tasks_than_slurm_takes_becomes_several_one_after_another(opsctl: Opsctl) -> None:
    dry = opsctl("submit", "--array", "1-2100%1", "--begin", "now+1day", "--dry-run")
    assert "#SBATCH --array=1-1000%1\n" in dry.out and opsctl.queue("%A") == []
    assert "1-1000%1, 1-100%1" in dry.err
    answer = opsctl("submit", "--array", "1-2100%1", "--begin", "now+1day")
    assert answer.code == 0, answer.err
    chains = answer.out.split()
    assert [one["array"] for one in opsctl.chains()] == ["1-1000%1", "1-1000%1", "1-100%1"]
    assert [str(one["chain"]) for one in opsctl.chains()] == chains
    first, second, third = chains
    waits = dict(row.split("|") for row in opsctl.queue("%A|%E"))
    assert waits[first] == "(null)" and f"afterany:{first}_*" in waits[second]
    assert all(f"afterany:{one}_*" in waits[third] for one in (first, second))
    assert "1-1000%1" in answer.err
    assert opsctl.ok("cancel").split() == [f"{first}_[1-1000%1]", f"{second}_[1-1000%1]", f"{third}_[1-100%1]"]


def test_another_cluster_than_the_configured_one_is_refused_by_name(
    opsctl: Opsctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = client_for(opsctl.cluster.cluster)
    assert asked.jobs() == []
    monkeypatch.setenv("SLURM_CLUSTERS", "far")
    environment = opsctl.environment() | {"SLURM_CLUSTERS": "far"}
    monkeypatch.setattr(Opsctl, "environment", lambda _: environment)
    refused = opsctl("submit")
    assert refused.code == 1 and re.search(r"SLURM_CLUSTERS=far\b.*\bsite\b", refused.last_line)
    monkeypatch.setenv("SLURM_CLUSTERS", "site")
    assert client_for(opsctl.cluster.cluster).jobs() == []


def test_slurm_is_not_to_requeue_a_training_by_itself(opsctl: Opsctl) -> None:
    chain = opsctl.submit()
    asked = opsctl.cluster.run("scontrol", "show", "job", str(chain)).stdout
    assert re.search(r"\bRequeue=0\b", asked)


def test_a_suspended_job_is_said_to_be_and_goes_on_when_resumed(run: WatchedRun) -> None:
    job = run.sbatch()
    run.cluster.wait_for_state(job, "RUNNING")
    run.cluster.run("scontrol", "suspend", str(job))
    told = run("watch", "training")
    assert told.code == 1 and "is suspended after 0:00" in told.out
    assert [one.is_running for one in client_for(run.cluster.cluster).jobs(job_ids=[job])] == [False]
    run.cluster.run("scontrol", "resume", str(job))
    assert "is running for" in run("watch", "training").out


def test_maintenance_keeps_what_would_run_into_it_waiting_and_says_so(run: WatchedRun) -> None:
    cluster = run.cluster
    words = ["ReservationName=works", "StartTime=now+10minutes", "Duration=60", "Users=root", "Flags=MAINT,IGNORE_JOBS"]
    cluster.run("scontrol", "create", "reservation", *words, "Nodes=ALL")
    try:
        job = run.sbatch("--time=60")
        wait_until(lambda: "maint" in _reason(cluster, job).lower(), 20, "Slurm to say why it waits")
        # When it will begin Slurm says some seconds later than why it waits.
        begins = "is scheduled to start in"
        wait_until(lambda: begins in run("watch", "training").out, 60, "the check to say when it begins")
        assert run("watch", "training").code == 0
        (seen,) = client_for(cluster.cluster).jobs(job_ids=[job])
        assert seen.is_pending and not seen.is_held and not seen.cannot_start
        cluster.run("scontrol", "update", "ReservationName=works", "StartTime=now")
        wait_until(lambda: {node.state for node in client_for(cluster.cluster).nodes()} == {"maint"}, 20, "maintenance")
        assert not any(node.is_out_of_service for node in client_for(cluster.cluster).nodes())
    finally:
        cluster.run("scontrol", "delete", "ReservationName=works")
    cluster.wait_for_state(job, "RUNNING")


@pytest.mark.nightly
def test_a_reservations_end_holds_what_waits_for_it_and_a_preempted_job_has_its_grace(run: WatchedRun) -> None:
    """In one, because Slurm looks at either only every half minute."""
    cluster, client = run.cluster, client_for(run.cluster.cluster, 60)
    words = ["ReservationName=ours", "StartTime=now", "Duration=60", "Users=root", "Nodes=a1"]
    cluster.run("scontrol", "create", "reservation", *words)
    waits = run.sbatch("--reservation=ours", "--begin=now+1day")
    (seen,) = client.jobs(job_ids=[waits])
    assert seen.is_pending and not seen.is_held
    cluster.run("scontrol", "update", "ReservationName=ours", "EndTime=now+1")

    heard = run.folder / "heard"
    step = f"srun bash -c 'trap \"touch {heard}\" TERM; touch {heard}.ready; while :; do sleep 0.2; done'"
    cheap = run.cluster.sbatch(step, "--partition=cheap", "--exclusive", "--nodes=2")
    wait_until((run.folder / "heard.ready").exists, 30, "the step")
    cluster.sbatch("sleep 60", "--partition=dear", "--exclusive", "--nodes=2")
    wait_until(heard.exists, 30, "the step to hear of it")
    assert cluster.job_state(cheap) == "RUNNING", "SIGTERM comes first, the end after the grace"

    wait_until(lambda: client.jobs(job_ids=[waits])[0].is_held, 60, "the reservation to end")
    told = run("watch", "training")
    assert told.code == 2 and "is held" in told.out
    cluster.wait_for_state(cheap, "PREEMPTED", timeout_s=60)
    assert job_outcome(client.ends([cheap])[cheap]).end is End.PREEMPTED


def _reason(cluster: RunningCluster, job: int) -> str:
    return cluster.run("squeue", "-h", "-j", str(job), "-o", "%r").stdout.strip()
