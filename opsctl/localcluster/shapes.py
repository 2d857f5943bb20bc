"""Clusters that trainings were really made on, as far as their requests can tell."""

from __future__ import annotations

from opsctl.localcluster.spec import Account, NodeGroup, Partition, Qos, Reservation, Spec


def bloom(name: str = "bloom", *, accounting: bool = False, slurm_prefix: str | None = None) -> Spec:
    """The part of Jean Zay that BLOOM and tr1-13B used: 52 nodes x 8 A100 in gpu_p5, 32 nodes x 4 V100 in gpu_p13."""
    a100 = NodeGroup("jean-zay-iam", 52, 8, "a100", cpus=64, memory_mib=512_000, features=("a100",))
    v100 = NodeGroup("jean-zay-v", 32, 4, "v100", cpus=40, memory_mib=192_000, features=("v100", "v100-32g"))
    return Spec(
        name=name,
        shape="bloom",
        node_groups=(a100, v100),
        partitions=(
            Partition("gpu_p5", (a100.folded,), max_time="100:00:00", default_time="00:10:00"),
            Partition("gpu_p13", (v100.folded,), max_time="100:00:00", default_time="00:10:00", is_default=True),
        ),
        reservations=(Reservation("hug", a100.folded, accounts=("six@a100",)),),
        accounting=accounting,
        accounts=(
            Account("six", qos=("qos_gpu-t3", "qos_gpu-t4", "qos_gpu-dev", "qos_gpu-gc")),
            Account("six@a100", parent="six"),
            Account("six@v100", parent="six"),
        ),
        qos=(
            Qos("qos_gpu-t3", ("MaxWall=20:00:00", "MaxTRESPerJob=gres/gpu=512")),
            Qos("qos_gpu-t4", ("MaxWall=100:00:00", "MaxTRESPerJob=gres/gpu=16")),
            Qos("qos_gpu-dev", ("MaxWall=02:00:00", "MaxTRESPerJob=gres/gpu=32")),
            Qos("qos_gpu-gc", ("MaxWall=100:00:00",)),
        ),
        slurm_prefix=slurm_prefix,
    )
