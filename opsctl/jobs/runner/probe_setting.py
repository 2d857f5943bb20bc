"""Where and with what the nodes of an allocation are tested for a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opsctl.core.errors import SlurmError
from opsctl.diagnosis.probe.run_probe import Setting
from opsctl.diagnosis.probe.verdict import Expected
from opsctl.jobs.runner.launch import free_port, launchers_python, master_address
from opsctl.run.config.schema import RunFile
from opsctl.run.render.shell import ShellRequest, shell_script
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster


def setting_for(
    file: RunFile,
    run_file: Path,
    folder: Path,
    cluster: Cluster,
    client: SlurmClient,
    nodes: Sequence[str],
    job_id: int,
) -> Setting:
    """file: the run's, expanded. folder: that all nodes write to. nodes: the job's, in Slurm's order."""
    try:
        seen = client_for(cluster).nodes(",".join(nodes))  # not the job's own client, which may wait for minutes
        memory_mib = {node.name: node.memory_mib for node in seen}
    except SlurmError:
        memory_mib = {}  # then nodes are compared with each other alone
    request = ShellRequest(
        run_file=str(run_file),
        folder=str(folder),
        environment=file.run.environment,
        env=file.env,
        shared=file.run.group is not None,
        cluster=cluster,
    )
    return Setting(
        nodes=nodes,
        job_id=job_id,
        python=launchers_python(file.run.environment),
        script=shell_script(request),
        folder=folder,
        environment={**os.environ, **cluster.additions(dict(os.environ))},
        meeting=lambda first: (master_address(first, client.node_address), free_port(job_id)),
        expected=Expected(file.slurm.gpus_per_node, memory_mib),
    )
