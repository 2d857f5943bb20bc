"""On nodes like Jean Zay's, what the shipped examples ask for is accepted, and what is not there is refused."""

from __future__ import annotations

import getpass
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.core.errors import SlurmError
from opsctl.core.shipped import templates_folder
from opsctl.jobs.control.send_chain import way_out
from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.installation import Installation
from opsctl.slurm.backends import client_for
from tests.cluster.conftest import RunningCluster, guarded_folder, wait_until
from tests.cluster.jean_zay import jean_zay, reserve
from tests.users import as_user

EXAMPLES = ("tr11-176B-ml", "tr1-13B", "setup-test-n2")


@pytest.fixture(scope="module")
def bloom_cluster(slurm: Installation) -> Iterator[RunningCluster]:
    with guarded_folder() as folder:
        up = lifecycle.up(jean_zay("bloom"), folder)
        cluster = RunningCluster(up.folder, up.cluster, slurm)
        reserve(cluster, f"Users={getpass.getuser()}")
        yield cluster


def request_of(example: str) -> list[str]:
    """The sbatch options of a shipped example, read from its file by this test alone."""
    run = tomllib.loads((templates_folder() / "examples" / f"{example}.toml").read_text())
    slurm = run["slurm"]
    words = [f"--array={run['array']['tasks']}", "--ntasks-per-node=1", f"--gres=gpu:{slurm['gpus_per_node']}"]
    words += [f"--cpus-per-task={slurm['cpus_per_task']}"]
    for key in ("nodes", "time", "partition", "constraint", "reservation", "qos", "account"):
        if key in slurm:
            words.append(f"--{key}={slurm[key]}")
    return [*words, *slurm.get("extra", [])]


def ask(cluster: RunningCluster, *words: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
    """`sbatch --test-only` of a job with these options."""
    return cluster.run("sbatch", "--test-only", "--chdir=/", *words, "--wrap", "true", user=user, check=False)


def accepts(cluster: RunningCluster, *words: str) -> bool:
    return ask(cluster, *words).returncode == 0


def test_it_has_blooms_nodes_and_partitions(bloom_cluster: RunningCluster) -> None:
    listed = bloom_cluster.run("sinfo", "-h", "-o", "%R %D %N %l %f %G").stdout.split("\n")
    assert "gpu_p5 52 jean-zay-iam[01-52] 4-04:00:00 a100 gpu:a100:8" in listed
    assert "gpu_p13 32 jean-zay-v[01-32] 20:00:00 v100,v100-32g gpu:v100:4" in listed
    assert "ReservationName=hug" in bloom_cluster.run("scontrol", "show", "reservation").stdout


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_the_examples_ask_for_is_accepted(bloom_cluster: RunningCluster, example: str) -> None:
    answer = ask(bloom_cluster, *request_of(example))
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize(
    ("wrong", "refusal"),
    [
        ("--time=100:01:00", "time limit"),
        ("--nodes=53", "permitted|not available|configuration"),
        ("--partition=gpu_p99", "partition"),
        ("--constraint=h100", "feature"),
        ("--reservation=hugs", "reservation"),
        ("--gres=gpu:v100:4", "not available|gres"),
        ("--gres=gpu:9", "not available|gres"),
    ],
)
def test_a_wrong_request_is_refused(bloom_cluster: RunningCluster, wrong: str, refusal: str) -> None:
    answer = ask(bloom_cluster, *request_of("tr11-176B-ml"), wrong)
    assert answer.returncode != 0
    assert any(word in answer.stderr.lower() for word in refusal.split("|")), answer.stderr


def test_a_v100_job_over_twenty_hours_is_refused(bloom_cluster: RunningCluster) -> None:
    assert not accepts(bloom_cluster, *request_of("tr1-13B"), "--time=20:01:00")


def test_a_chain_of_48_nodes_runs_one_task_at_a_time(bloom_cluster: RunningCluster, tmp_path: Path) -> None:
    """Eight of BLOOM's nodes had to wait for 44 others; here 48 wait for no one."""
    seen = tmp_path / "hosts"
    script = f"srun --overlap printenv SLURMD_NODENAME >> {seen}-$SLURM_ARRAY_TASK_ID"
    words = [*request_of("tr11-176B-ml"), "--array=1-2%1", "--time=10"]
    job = bloom_cluster.sbatch(script, *words)

    def names(task: int) -> list[str]:
        path = Path(f"{seen}-{task}")
        return sorted(path.read_text().split()) if path.exists() else []

    expected = [f"jean-zay-iam{number:02d}" for number in range(1, 49)]
    wait_until(lambda: names(1) == expected and names(2) == expected, 60, f"both tasks of {job}")


def test_accounting_refuses_at_submit_what_an_account_may_not(accounting_cluster: RunningCluster) -> None:
    large, first = request_of("tr11-176B-ml"), request_of("tr1-13B")
    assert not accepts(accounting_cluster, *large, "--account=nobody"), "an unknown account"
    assert not accepts(accounting_cluster, *first, "--account=six@a100"), "another hardware's account"
    assert not accepts(accounting_cluster, *first, "--qos=qos_gpu-gc"), "a QoS that account does not have"
    assert not accepts(accounting_cluster, *first, "--time=20:01:00"), "longer than the default QoS"
    longer = [*first, "--time=100:00:00", "--qos=qos_gpu-t4"]
    assert not accepts(accounting_cluster, *longer), "128 GPUs where 16 are allowed"
    assert accepts(accounting_cluster, *longer, "--nodes=4"), "16 GPUs"


def test_users_and_limits_are_added_with_sacctmgr_and_enforced(
    accounting_cluster: RunningCluster, unix_user: Callable[..., str]
) -> None:
    user = unix_user("dan")
    words = ["--partition=gpu_p13", "--account=six@v100", "--time=5", "--gres=gpu:1"]
    refused = ask(accounting_cluster, *words, user=user)
    assert "Invalid account" in refused.stderr
    accounting_cluster.run("sacctmgr", "-i", "add", "user", user, "account=six@v100", "MaxSubmitJobs=1")
    wait_until(lambda: ask(accounting_cluster, *words, user=user).returncode == 0, 60, "the new user to be known")
    job = accounting_cluster.sbatch("sleep 300", *words, user=user)
    second = accounting_cluster.run(
        "sbatch", "--chdir=/", *words, "--output=/dev/null", "--wrap", "true", user=user, check=False
    )
    assert "AssocMaxSubmitJobLimit" in second.stderr
    script = "\n".join(["#!/bin/bash", *(f"#SBATCH {word}" for word in (*words, "--output=/dev/null --chdir=/")), ""])
    with pytest.raises(SlurmError, match=r"AssocMaxSubmitJobLimit") as limit:
        as_user(user, lambda: client_for(accounting_cluster.cluster).submit(script))
    assert "sacctmgr show qos" in way_out(str(limit.value))
    accounting_cluster.run("scancel", str(job))
    rows = wait_until(
        lambda: [
            row
            for row in accounting_cluster.run(
                "sacct", "-a", "-n", "-P", "-X", "-j", str(job), "-o", "User,Account,State"
            ).stdout.splitlines()
            if "CANCELLED" in row
        ],
        30,
        "sacct to have the job's end",
    )
    assert rows == [f"{user}|six@v100|CANCELLED by 0"]
    client = client_for(accounting_cluster.cluster, 30)
    assert client.ends([job, 987_654])[job].state == "CANCELLED"
