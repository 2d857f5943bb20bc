"""The shipped examples against the cluster they were made for, its limits and accounts enforced."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from opsctl.core.errors import SlurmError
from opsctl.core.shipped import templates_folder
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.render.batch import ChainRequest, batch_script
from opsctl.slurm.backends import client_for
from opsctl.slurm.cluster import Cluster
from tests.cluster.conftest import RunningCluster, wait_until
from tests.tiny_run import expand

EXAMPLES = templates_folder() / "examples"


def example(name: str) -> ExpandedRun:
    path = EXAMPLES / f"{name}.toml"
    return expand(load_run_file(path, {one: f"/{one}" for one in re.findall(r"\$\{(\w+)\}", path.read_text())}))


def script(name: str, **slurm: object) -> str:
    run = example(name)
    file = msgspec.structs.replace(run.file, slurm=msgspec.structs.replace(run.file.slurm, **slurm))
    run = replace(run, file=file, paths=RunPaths(Path("/tmp/output")))
    request = ChainRequest("1-3%1", "5eed", "70ce", datetime.now(UTC), "/env/bin/python", "/tmp")
    return batch_script(run, Cluster(), request)


@pytest.mark.parametrize("name", ["tr11-176B-ml", "tr1-13B", "setup-test-n2"])
def test_slurm_accepts_the_examples_scripts_on_their_cluster(accounting_cluster: RunningCluster, name: str) -> None:
    assert "to start at" in accounting_cluster.would_start(script(name))


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"account": "six@nothing"}, "account"), ({"time": "101:00:00"}, "time limit"), ({"gpus_per_node": 9}, "config")],
)
def test_a_request_the_cluster_does_not_offer_is_refused_in_slurms_words(
    accounting_cluster: RunningCluster, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(SlurmError, match=f"(?i)refused.*{words}"):
        client_for(accounting_cluster.cluster, 60).submit(script("tr11-176B-ml", **changes))


def test_accounting_says_how_a_job_ended(accounting_cluster: RunningCluster) -> None:
    client = client_for(accounting_cluster.cluster, 60)
    head = "#!/bin/bash\n#SBATCH --partition=gpu_p13 --account=six@v100 --output=/dev/null --chdir=/\n"
    failed = client.submit(f"{head}exit 3\n")
    cancelled = client.submit(f"{head}#SBATCH --hold\n")
    client.cancel([cancelled])
    ends = wait_until(lambda: len(found := client.ends([failed, cancelled])) == 2 and found, 40, "both ends")
    assert isinstance(ends, dict)
    assert (ends[failed].state, ends[failed].exit_code) == ("FAILED", 3)
    assert ends[cancelled].state == "CANCELLED"
    assert ends[failed].started_at is not None and ends[failed].started_at.tzinfo is not None


def test_the_demo_fits_the_plain_cluster_that_its_first_lines_bring_up(local_cluster: RunningCluster) -> None:
    assert "to start at" in local_cluster.would_start(script("demo"))
