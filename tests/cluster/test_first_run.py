"""`opsctl init` and Tab beside a real Slurm."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from opsctl.slurm.client import Deadline
from opsctl.slurm.partitions_offered import accounts, offers
from tests.cluster.commands import Opsctl
from tests.cluster.conftest import RunningCluster
from tests.cluster.test_identity import Shell
from tests.tiny_run import write_run


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
    refused = opsctl("init", "x", "--partition", "gpu")
    assert refused.code and "'gpu'" in refused.err and "main" in refused.err
    job = local_cluster.sbatch("sleep 60")

    def offered(*words: str) -> list[str]:
        asked = {"_OPSCTL_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(("opsctl", *words))}
        asked |= {"COMP_CWORD": str(len(words)), "OPSCTL_COMPLETION_SECONDS": "20"}
        said = local_cluster.run(*_command(asked))
        return [line.partition(",")[2] for line in said.stdout.splitlines()]

    assert offered("exclude", "add", "") == ["node1", "node2", "node3", "node4"]
    assert str(job) in offered("triage", "")


def test_where_the_only_slurm_is_a_local_cluster_what_is_to_be_typed_names_it(
    local_cluster: RunningCluster, tmp_path: Path
) -> None:
    write_run(tmp_path)
    shell = Shell(local_cluster, tmp_path)
    assert re.findall("opsctl submit.*", shell.ok())[0].split()[:3] == ["opsctl", "submit", "put"]
    known = tmp_path / "state" / "opsctl" / "clusters"
    known.mkdir(parents=True)
    (known / "mine").symlink_to(local_cluster.folder)
    (advised,) = re.findall(r"opsctl submit --cluster \S+", shell.ok())
    refused = shell("submit", "--begin", "now+1day")
    assert refused.code == 1 and "--cluster mine" in refused.err and advised.endswith(" --cluster mine")
    try:
        shell.ok(*advised.split()[1:], "--begin", "now+1day")
    finally:
        local_cluster.cancel_everything()


def _command(asked: dict[str, str]) -> list[str]:
    import sys

    return ["env", *(f"{name}={value}" for name, value in asked.items()), sys.executable, "-m", "opsctl"]
