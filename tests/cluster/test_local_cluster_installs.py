"""Local clusters of an ordinary user, and of a Slurm installed elsewhere."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.local.cluster import lifecycle
from opsctl.local.cluster.daemons import processes_of
from opsctl.local.cluster.files import places_of, read_description
from opsctl.local.cluster.installation import SYSTEM_FOLDERS, find_installation
from opsctl.local.cluster.spec import plain
from tests.cluster.conftest import RunningCluster

PREFIX = Path(os.environ.get("OPSCTL_SLURM_PREFIXES", "/opt/slurm-25.11").split(os.pathsep)[0])


def as_ordinary_user(user: str) -> list[str]:
    """The start of a command line that runs this opsctl as `user`; skips where `user` may not read them."""
    paths = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    home = pwd.getpwnam(user).pw_dir
    # No PATH worth the name: the daemons are in sbin, where ordinary users do not look.
    start = ["runuser", "-u", user, "--", "env", "-i", "-C", "/"]
    start += [f"HOME={home}", f"PYTHONPATH={paths}", "PATH=/usr/bin:/bin"]
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [*start, python, "-m", "opsctl"]
        if subprocess.run([*command, "--version"], capture_output=True, timeout=20).returncode == 0:
            return command
    pytest.skip(f"{user} may not read this Python or this checkout")


def test_an_ordinary_user_brings_up_runs_and_takes_down(
    slurm: object, unix_user: Callable[..., str], cluster_folder: Path
) -> None:
    user = unix_user("eve")
    start = as_ordinary_user(user)
    cluster_folder.chmod(0o1777)
    folder = cluster_folder / "hers"

    def opsctl(*words: str) -> subprocess.CompletedProcess[str]:
        command = [*start, "local-cluster", words[0], "--folder", str(folder), *words[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    came = opsctl("up", "--nodes", "2")
    assert came.returncode == 0, came.stderr
    assert folder.owner() == user
    said = opsctl("exec", "--", "srun", "-N2", "id", "-un")
    assert (said.returncode, said.stdout.split()) == (0, [user, user]), said.stderr
    assert len(processes_of(places_of(folder))) >= 4
    went = opsctl("down")
    assert went.returncode == 0, went.stderr
    assert processes_of(places_of(folder)) == []
    cluster_folder.chmod(0o755)  # opsctl takes nothing down in a folder that everybody may write


def test_nobody_elses_processes_are_taken_for_the_clusters(local_cluster: RunningCluster) -> None:
    """A person's shell with the cluster's SLURM_CONF is no part of it; `down` must not end it."""
    shell = subprocess.Popen(["sleep", "60"], env=local_cluster.environment())
    try:
        assert shell.pid not in {process.pid for process in processes_of(local_cluster.places)}
    finally:
        shell.kill()
        shell.wait()


@pytest.mark.skipif(not (PREFIX / "sbin" / "slurmctld").exists(), reason=f"no Slurm under {PREFIX}")
def test_a_slurm_under_a_prefix_is_used_by_daemons_and_commands(cluster_folder: Path) -> None:
    command = [sys.executable, "-m", "opsctl", "local-cluster"]
    words = ["--folder", str(cluster_folder), "--slurm-prefix", str(PREFIX), "--nodes", "3"]
    came = subprocess.run([*command, "up", *words], capture_output=True, text=True, timeout=60)
    assert came.returncode == 0, came.stderr
    description = read_description(places_of(cluster_folder))
    assert description is not None
    assert description.cluster.bin_folders == (str(PREFIX / "bin"), str(PREFIX / "sbin"))
    assert description.cluster.library_folders == (str(PREFIX / "lib"), str(PREFIX / "lib" / "slurm"))
    execute = [*command, "exec", "--folder", str(cluster_folder), "--"]
    said = subprocess.run([*execute, "srun", "--version"], capture_output=True, text=True, timeout=30)
    assert said.stdout.startswith("slurm {}.{:02d}.".format(*find_installation(str(PREFIX)).version)), said.stderr
    ran = subprocess.run(
        [*execute, "srun", "-N3", "--gres=gpu:2", "hostname"], capture_output=True, text=True, timeout=30
    )
    assert (ran.returncode, len(ran.stdout.split())) == (0, 3), ran.stderr
    assert lifecycle.down(cluster_folder) > 0
    assert processes_of(places_of(cluster_folder)) == []


def test_up_finds_the_daemons_when_sbin_is_not_in_path(
    slurm: object, cluster_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "/usr/sbin" in SYSTEM_FOLDERS
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    up = lifecycle.up(plain("sbin", nodes=1), cluster_folder)
    answer = subprocess.run(["srun", "true"], env=up.cluster.environment(), capture_output=True, timeout=30)
    assert answer.returncode == 0, answer.stderr
