"""Local clusters with the nodes, limits and accounts of Jean Zay that the shipped examples ask for."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from opsctl.local.cluster.spec import NodeGroup, Partition, Spec

if TYPE_CHECKING:
    from tests.cluster.conftest import RunningCluster

A100 = NodeGroup("jean-zay-iam", 52, 8, "a100", cpus=64, memory_mib=512_000, features=("a100",))
V100 = NodeGroup("jean-zay-v", 32, 4, "v100", cpus=40, memory_mib=192_000, features=("v100", "v100-32g"))
#: Without the flag Slurm accepts a job over a limit, and the job waits forever.
_QOS = {
    "qos_gpu-t3": ("MaxWall=20:00:00", "MaxTRESPerJob=gres/gpu=512", "Flags=DenyOnLimit"),
    "qos_gpu-t4": ("MaxWall=100:00:00", "MaxTRESPerJob=gres/gpu=16", "Flags=DenyOnLimit"),
    "qos_gpu-dev": ("MaxWall=02:00:00", "MaxTRESPerJob=gres/gpu=32", "Flags=DenyOnLimit"),
    "qos_gpu-gc": ("MaxWall=100:00:00", "Flags=DenyOnLimit"),
}
#: Account -> its partition and its QoS, the default first.
_ACCOUNTS = {"six@v100": ("gpu_p13", list(_QOS)[:3]), "six@a100": ("gpu_p5", list(_QOS))}


def jean_zay(name: str, accounting: bool = False) -> Spec:
    """Return 52 nodes x 8 A100 in gpu_p5 and 32 x 4 V100 in gpu_p13."""
    # Without QoS only the partition can set the 20 hours of V100 jobs.
    limit = "100:00:00" if accounting else "20:00:00"
    partitions = (
        Partition("gpu_p5", (A100.folded,), max_time="100:00:00"),
        Partition("gpu_p13", (V100.folded,), max_time=limit, is_default=True),
    )
    return Spec(name, "bloom", (A100, V100), partitions, accounting=accounting)


def reserve(cluster: RunningCluster, who: str) -> None:
    """Reserve the A100 nodes. The reservation is magnetic: jobs of `who` need not name it."""
    words = ("ReservationName=hug", f"Nodes={A100.folded}", who, "StartTime=now", "Duration=UNLIMITED")
    cluster.run("scontrol", "create", "reservation", *words, "Flags=MAGNETIC")


def add_accounts(cluster: RunningCluster) -> None:
    """Add the QoS and accounts of BLOOM, with the caller as their user, and the reservation of one of them."""

    def add(*words: str) -> None:
        cluster.run("sacctmgr", "-i", "add", *words)

    for qos, limits in _QOS.items():
        add("qos", qos, "set", *limits)
    add("account", "six", "Cluster=jz")
    for account, (partition, qos_names) in _ACCOUNTS.items():
        qos_level = f"QosLevel={','.join(qos_names)}"
        add("account", account, "Cluster=jz", "Parent=six", qos_level, f"DefaultQos={qos_names[0]}")
        add("user", getpass.getuser(), f"Account={account}", "Cluster=jz")
        cluster.run("scontrol", "update", f"PartitionName={partition}", f"AllowAccounts={account}")
    cluster.run("sacctmgr", "-i", "modify", "user", getpass.getuser(), "set", "DefaultAccount=six@v100")
    reserve(cluster, "Accounts=six@a100")
