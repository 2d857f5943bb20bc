"""`opsctl local-cluster`: up, down, status, exec, crashes and neighbours."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.daemons import pid_of, processes_of
from opsctl.local.cluster.files import places_of, read_description
from opsctl.local.cluster.spec import plain
from tests.cluster.conftest import SPEC, RunningCluster, guarded_folder, wait_until
from tests.printed_json import printed

OPSCTL = [sys.executable, "-m", "opsctl", "local-cluster"]


def opsctl(*words: str | Path, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OPSCTL, *map(str, words)], capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
    )


def living_processes_that_mention(text: str) -> list[str]:
    """Command lines and environments of all living processes, looked through without the product's help."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.joinpath("stat").read_text().rpartition(") ")[2][0] in "ZX":
                continue
            shown = entry.joinpath("cmdline").read_bytes() + entry.joinpath("environ").read_bytes()
        except OSError:
            continue
        # The guard of the test's folder has it on its command line.
        if text.encode() in shown and b"sys.stdin.read()" not in shown:
            found.append(shown.decode(errors="replace")[:200])
    return found


def is_listened_on(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def ports_of(folder: Path) -> list[int]:
    description = read_description(places_of(folder))
    assert description is not None
    return [description.ports.slurmctld, *description.ports.slurmds]


def test_up_runs_jobs_and_down_leaves_no_process_and_no_port(cluster_folder: Path) -> None:
    came = opsctl("up", "--folder", cluster_folder, "--nodes", "2", "--gpus", "1")
    assert came.returncode == 0, came.stderr
    assert f"opsctl submit --cluster {cluster_folder}" in came.stderr
    ports = ports_of(cluster_folder)
    assert all(is_listened_on(port) for port in ports)
    # One task that ignores what can be ignored, and one in a session of its own that outlives its parent.
    seconds = 3_000_000 + os.getpid()
    stubborn = f"trap '' TERM HUP INT; (setsid sleep {seconds} &) ; while :; do sleep 1; done"
    sent = opsctl("exec", "--folder", cluster_folder, "--", "srun", "-N2", "--gres=gpu:1", "hostname")
    assert sent.returncode == 0, sent.stderr
    assert len(sent.stdout.splitlines()) == 2
    words = ["--parsable", "-N1", "--output=/dev/null", "--chdir=/", "--wrap", stubborn]
    sent = opsctl("exec", "--folder", cluster_folder, "--", "sbatch", *words)
    assert sent.returncode == 0, sent.stderr
    wait_until(lambda: living_processes_that_mention(f"sleep\0{seconds}"), 20, "the job to run")

    went = opsctl("down", "--folder", cluster_folder)

    assert went.returncode == 0, went.stderr
    assert living_processes_that_mention(f"sleep\0{seconds}") == []
    assert living_processes_that_mention(str(cluster_folder)) == []
    assert not any(is_listened_on(port) for port in ports)
    again = opsctl("down", "--folder", cluster_folder)
    assert again.returncode == 0


def test_up_of_a_live_cluster_says_that_it_is_up_and_what_next(local_cluster: RunningCluster) -> None:
    before = {process.pid for process in processes_of(local_cluster.places)}
    again = lifecycle.up(SPEC, local_cluster.folder)
    assert again.was_up
    assert {process.pid for process in processes_of(local_cluster.places)} == before
    other_shape = opsctl("up", "--folder", local_cluster.folder, "--nodes", "3")
    assert other_shape.returncode == 1
    assert "4 nodes x 2 GPUs" in other_shape.stderr and "3 nodes x 2 GPUs" in other_shape.stderr
    assert other_shape.stderr.count("\n") == 1
    assert {process.pid for process in processes_of(local_cluster.places)} == before


def test_up_killed_at_any_moment_is_found_and_ended_by_down(cluster_folder: Path) -> None:
    places = places_of(cluster_folder)
    for daemons_before_the_kill in (1, 2, 4):
        starting = subprocess.Popen(
            [*OPSCTL, "up", "--folder", str(cluster_folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while len(processes_of(places)) < daemons_before_the_kill and starting.poll() is None:
            assert time.monotonic() < deadline
        starting.send_signal(signal.SIGKILL)
        starting.wait(timeout=10)
        went = opsctl("down", "--folder", cluster_folder)
        assert went.returncode == 0, went.stderr
        assert living_processes_that_mention(str(cluster_folder)) == []
    assert opsctl("up", "--folder", cluster_folder).returncode == 0


def test_a_start_that_fails_quotes_the_daemons_log_and_ends_what_it_started(cluster_folder: Path) -> None:
    broken = replace(plain("broken"), extra_slurm_conf=("SelectType=select/nonsense",))
    with pytest.raises(OpsctlError) as refused:
        lifecycle.up(broken, cluster_folder)
    assert "slurmctld" in str(refused.value)
    assert "nonsense" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert processes_of(places_of(cluster_folder)) == []


def test_two_clusters_started_at_the_same_moment_live_side_by_side(cluster_folder: Path) -> None:
    with guarded_folder() as other_folder, ThreadPoolExecutor(2) as pool:
        folders = [cluster_folder, other_folder]
        came = list(pool.map(lambda folder: opsctl("up", "--folder", folder, "--nodes", "2"), folders))
        assert [one.returncode for one in came] == [0, 0], [one.stderr for one in came]
        assert set(ports_of(cluster_folder)).isdisjoint(ports_of(other_folder))
        jobs = [
            opsctl("exec", "--folder", folder, "--", "sbatch", "--parsable", "--output=/dev/null", "--wrap", "true")
            for folder in folders
        ]
        # Jobs take their rendezvous port from their id, and both clusters are on this host.
        assert jobs[0].stdout != jobs[1].stdout
        assert opsctl("down", "--folder", cluster_folder).returncode == 0
        asked = opsctl("exec", "--folder", other_folder, "--", "srun", "-N2", "true")
        assert asked.returncode == 0, asked.stderr


def test_a_cluster_comes_down_and_up_after_a_reboot_with_its_queue(cluster_folder: Path) -> None:
    spec = plain("reboot", nodes=2)
    before = lifecycle.up(spec, cluster_folder)
    held = subprocess.run(
        ["sbatch", "--hold", "--parsable", "--chdir=/", "--job-name=outlives-it", "--wrap", "true"],
        env=before.cluster.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout.strip()
    places = places_of(cluster_folder)
    saved = places.state / "job_state"
    wait_until(lambda: saved.exists() and b"outlives-it" in saved.read_bytes(), 20, "the queue to be saved")
    # A reboot ends all at once, and leaves pid files that name other processes.
    for process in processes_of(places):
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not processes_of(places), 60, "everything to be gone")
    innocent = subprocess.Popen(["sleep", "60"])
    try:
        for pid_file in places.pids.iterdir():
            pid_file.write_text(f"{innocent.pid}\n")
        assert lifecycle.down(cluster_folder) == 0
        assert innocent.poll() is None
        after = lifecycle.up(spec, cluster_folder)
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()
    assert not after.was_up
    queue = subprocess.run(
        ["squeue", "-h", "-o", "%A %T %r"],
        env=after.cluster.environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout
    assert queue.split() == [held, "PENDING", "JobHeldUser"]


def test_exec_passes_words_and_exit_status_and_a_folder_may_have_any_name(cluster_folder: Path) -> None:
    folder = cluster_folder / "it's my $(touch pwned) clüster" / ("deep" * 20)
    came = opsctl("up", "--folder", folder, "--nodes", "1", "--gpus", "0")
    assert came.returncode == 0, came.stderr
    try:
        said = opsctl("exec", "--folder", folder, "--", "srun", "printf", "%s|", "a b", "--name", "$HOME")
        assert (said.returncode, said.stdout) == (0, "a b|--name|$HOME|")
        assert opsctl("exec", "--folder", folder, "--", "srun", "bash", "-c", "exit 37").returncode == 37
        assert opsctl("exec", "--folder", folder, "--", "no-such-command").returncode == 127
        next_line = next(line for line in came.stderr.splitlines() if "local-cluster exec" in line)
        typed = shlex.split(next_line)
        assert typed[:2] == ["opsctl", "local-cluster"]
        assert "node1" in opsctl(*typed[2:-1], "sinfo").stdout
        assert not list(Path.cwd().glob("pwned"))
    finally:
        assert opsctl("down", "--folder", folder).returncode == 0
    assert living_processes_that_mention(str(cluster_folder)) == []
    assert not places_of(folder).root.is_symlink()


def test_status_tells_up_partial_and_down_and_a_hung_controller(
    cluster_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(cluster_folder))

    def status() -> dict[str, object]:
        answer = opsctl("status", "--json")
        assert answer.returncode == 0, answer.stderr
        (found,) = printed("local-cluster status", answer.stdout)
        return dict(found)

    empty = opsctl("status", "--json")
    assert printed("local-cluster status", empty.stdout) == []
    assert opsctl("up", "--name", "mine", "--nodes", "3").returncode == 0
    folder = cluster_folder / "opsctl" / "clusters" / "mine"
    try:
        now = status()
        assert (now["name"], now["state"], now["nodes_by_state"]) == ("mine", "up", {"idle": 3})
        places = places_of(folder)
        pid = pid_of(places, "slurmd-node2")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid_of(places, "slurmd-node2") is None, 60, "slurmd to be gone")
        now = status()
        assert (now["state"], now["daemons_missing"]) == ("partial", ["slurmd-node2"])
        assert opsctl("up", "--name", "mine", "--nodes", "3").returncode == 0
        assert status()["state"] == "up"
        controller = pid_of(places, "slurmctld")
        assert controller is not None
        os.kill(controller, signal.SIGSTOP)
        # By our own limit, not by Slurm's, which is longer.
        assert re.search(r"\b[1-8] s\b|no time left", str(status()["problem"]))
    finally:
        assert opsctl("down", "--name", "mine").returncode == 0
    assert status()["state"] == "down"
    # As it was before, without being told again.
    assert "3 nodes x 2 GPUs" in opsctl("up", "--name", "mine").stderr
    assert opsctl("down", "--name", "mine").returncode == 0
    assert living_processes_that_mention(str(folder)) == []


def test_jobs_of_two_unix_users_run_beside_each_other(
    local_cluster: RunningCluster, unix_user: Callable[..., str]
) -> None:
    users = [unix_user("ann"), unix_user("bob")]
    jobs = [local_cluster.sbatch("srun -N2 sleep 300", "-N2", user=user) for user in users]
    for job in jobs:
        local_cluster.wait_for_state(job, "RUNNING")
    listed = local_cluster.run("squeue", "-h", "-o", "%A %u").stdout.split()
    assert listed == [str(jobs[1]), users[1], str(jobs[0]), users[0]] or listed == [
        str(jobs[0]),
        users[0],
        str(jobs[1]),
        users[1],
    ]
    refused = local_cluster.run("scancel", str(jobs[0]), user=users[1], check=False)
    assert "Access/permission denied" in refused.stderr
    assert local_cluster.job_state(jobs[0]) == "RUNNING"


def test_a_killed_slurmctld_comes_back_with_its_jobs(local_cluster: RunningCluster) -> None:
    job = local_cluster.sbatch("sleep 300")
    local_cluster.wait_for_state(job, "RUNNING")
    with local_cluster.killed("slurmctld"):
        # `scontrol ping` gives up at once, squeue only after 9 s.
        assert "DOWN" in local_cluster.run("scontrol", "ping", check=False).stdout
    assert local_cluster.job_state(job) == "RUNNING"


def test_a_killed_node_loses_its_slurmd_and_tasks_and_no_other_does(local_cluster: RunningCluster) -> None:
    seconds = 3_000_000 + os.getpid()
    job = local_cluster.sbatch(f"srun -N2 sleep {seconds}", "-N2", "-w", "node[3-4]", "--no-requeue")
    wait_until(lambda: len(living_processes_that_mention(f"/usr/bin/sleep\0{seconds}")) == 2, 20, "two tasks to run")
    local_cluster.kill_node("node4")
    assert len(living_processes_that_mention(f"/usr/bin/sleep\0{seconds}")) == 1
    assert local_cluster.pid("slurmd-node4") is None
    assert local_cluster.pid("slurmd-node3") is not None
    assert local_cluster.job_state(job) in ("RUNNING", "COMPLETING", "NODE_FAIL", "FAILED")
