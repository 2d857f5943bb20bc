"""How much memory Slurm counts on, node by node."""

from __future__ import annotations

from opsctl.slurm.cluster import Cluster
from opsctl.slurm.process import refused, run_slurm
from opsctl.slurm.rows import queue_format, rows

_FIELDS = ("NodeList", "Memory")


def node_memory_mib(cluster: Cluster, folded: str, timeout_s: float) -> dict[str, int]:
    """Node -> its RealMemory, of a folded list. Raises SlurmError."""
    command = ["sinfo", "--noheader", "--all", "--Node", f"--nodes={folded}", f"--Format={queue_format(_FIELDS)}"]
    answer = run_slurm(command, cluster.environment(), timeout_s)
    if answer.code != 0:
        raise refused(answer, f"show the memory of {folded}")
    return {name: int(memory) for name, memory in rows(answer.stdout, len(_FIELDS)) if memory.isdigit()}
