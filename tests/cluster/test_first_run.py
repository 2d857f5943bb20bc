"""`opsctl init` and Tab beside a real Slurm."""

from __future__ import annotations

import tomllib
from pathlib import Path

from opsctl.slurm.client import Deadline
from opsctl.slurm.offers import accounts, offers
from tests.cluster.commands import Opsctl
from tests.cluster.conftest import RunningCluster


def test_a_run_is_made_of_what_slurm_offers_and_tab_knows_its_nodes_and_jobs(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    (offer,) = offers(local_cluster.cluster, Deadline(20))
    assert (offer.partition, offer.is_default, offer.nodes, offer.gpus_per_node) == ("main", True, 4, 2)
    assert accounts(local_cluster.cluster, Deadline(20)) == []
    opsctl = Opsctl(local_cluster, tmp_path)
    opsctl.ok("init", "mine", "--params", "125M", "--gpus", "4", "--gpu", "H100")
    slurm = tomllib.loads((tmp_path / "mine" / "run.toml").read_text())["slurm"]
    assert (slurm["partition"], slurm["nodes"], slurm["gpus_per_node"]) == ("main", 2, 2)
    assert "no partition 'gpu' with GPUs: Slurm has main" in opsctl("init", "x", "--partition", "gpu").err
    job = local_cluster.sbatch("sleep 60")

    def offered(*words: str) -> list[str]:
        asked = {"_OPSCTL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("opsctl", *words))}
        asked |= {"COMP_CWORD": str(len(words)), "OPSCTL_COMPLETION_SECONDS": "20"}
        said = local_cluster.run(*_command(asked))
        return [line.partition(",")[2] for line in said.stdout.splitlines()]

    assert offered("exclude", "add", "") == ["node1", "node2", "node3", "node4"]
    assert str(job) in offered("triage", "")


def _command(asked: dict[str, str]) -> list[str]:
    import sys

    return ["env", *(f"{name}={value}" for name, value in asked.items()), sys.executable, "-m", "opsctl"]
