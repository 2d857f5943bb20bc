"""Slurm as one of a federation, or with private data. Programs of the test stand in for its commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.errors import SlurmError, SlurmUnreachable
from opsctl.slurm.client import Deadline
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.commands import CommandClient, hides_others_jobs

OWN, FEDERATED = 2**26 - 1, 2**26 + 12


@pytest.fixture
def slurm(tmp_path: Path) -> CommandClient:
    _program(tmp_path, "squeue", "exit 0")
    _program(tmp_path, "scancel", "exit 0")
    return CommandClient(Cluster(bin_folders=(str(tmp_path),)), Deadline(20))


def _program(folder: Path, name: str, then: str) -> None:
    """One that notes how it was called."""
    (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >>{folder}/called\n{then}\n')
    (folder / name).chmod(0o755)


def test_what_shows_jobs_or_nodes_is_asked_for_this_clusters_alone(slurm: CommandClient, tmp_path: Path) -> None:
    for name in ("sinfo", "sacct"):
        _program(tmp_path, name, "exit 0")
    assert (slurm.jobs(), slurm.nodes(), slurm.ends([12])) == ([], [], {})
    calls = [line.split() for line in (tmp_path / "called").read_text().strip().split("\n")]
    assert {words[0] for words in calls} == {"squeue", "sinfo", "sacct"}
    assert all("--local" in words for words in calls)


def test_a_job_of_a_federation_is_cancelled_and_refused(slurm: CommandClient, tmp_path: Path) -> None:
    _program(tmp_path, "sbatch", f"echo '{FEDERATED};here'")
    with pytest.raises(SlurmError, match=rf"job {FEDERATED}.*federation") as said:
        slurm.submit("#!/bin/sh\n")
    assert "\n" not in str(said.value) and not isinstance(said.value, SlurmUnreachable)
    assert f"scancel {FEDERATED}" in (tmp_path / "called").read_text().splitlines()


def test_a_federations_job_that_cannot_be_taken_back_is_looked_for(slurm: CommandClient, tmp_path: Path) -> None:
    _program(tmp_path, "sbatch", f"echo {FEDERATED}")
    _program(tmp_path, "scancel", "echo scancel: error: Access/permission denied >&2; exit 1")
    with pytest.raises(SlurmUnreachable, match=rf"scancel {FEDERATED}"):
        slurm.submit("#!/bin/sh\n")


def test_the_last_id_of_a_cluster_of_its_own_is_taken(slurm: CommandClient, tmp_path: Path) -> None:
    _program(tmp_path, "sbatch", f"echo {OWN}")
    assert slurm.submit("#!/bin/sh\n") == OWN


@pytest.mark.parametrize(
    ("kept", "uid", "hidden"),
    [
        ("jobs", 1000, True),
        ("accounts,jobs,users", 1000, True),
        ("none", 1000, False),
        ("accounts,nodes", 1000, False),
        ("jobs", 0, False),
        ("jobs", 64030, False),
    ],
)
def test_with_private_jobs_only_root_and_slurms_own_account_see_others(kept: str, uid: int, hidden: bool) -> None:
    assert hides_others_jobs({"PrivateData": kept, "SlurmUser": "slurm(64030)"}, uid) is hidden


def test_a_configuration_that_does_not_say_it_hides_nothing() -> None:
    assert not hides_others_jobs({}, 1000)
