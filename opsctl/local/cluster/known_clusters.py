"""Clusters that trainings were really made on, as far as their requests can tell."""

from __future__ import annotations

from opsctl.local.cluster.spec import Account, NodeGroup, Partition, Qos, Reservation, Spec

#: Without it a job over a limit is taken and waits for ever.
_AT_SUBMIT = "Flags=DenyOnLimit"


def bloom(name: str = "bloom", *, accounting: bool = False, slurm_prefix: str | None = None) -> Spec:
    """The part of Jean Zay that BLOOM and tr1-13B used: 52 nodes x 8 A100 in gpu_p5, 32 nodes x 4 V100 in gpu_p13."""
    a100 = NodeGroup("jean-zay-iam", 52, 8, "a100", cpus=64, memory_mib=512_000, features=("a100",))
    v100 = NodeGroup("jean-zay-v", 32, 4, "v100", cpus=40, memory_mib=192_000, features=("v100", "v100-32g"))
    # Without QoS nothing but the partition can say the 20 hours that V100 jobs have.
    v100_limit = "100:00:00" if accounting else "20:00:00"
    return Spec(
        name=name,
        shape="bloom",
        node_groups=(a100, v100),
        partitions=(
            Partition("gpu_p5", (a100.folded,), max_time="100:00:00", accounts=("six@a100",)),
            Partition("gpu_p13", (v100.folded,), max_time=v100_limit, accounts=("six@v100",), is_default=True),
        ),
        # Magnetic: who may use it need not name it, or nothing else would ever start on these nodes.
        reservations=(Reservation("hug", a100.folded, accounts=("six@a100",), flags="MAGNETIC"),),
        accounting=accounting,
        qos=(
            Qos("qos_gpu-t3", ("MaxWall=20:00:00", "MaxTRESPerJob=gres/gpu=512", _AT_SUBMIT)),
            Qos("qos_gpu-t4", ("MaxWall=100:00:00", "MaxTRESPerJob=gres/gpu=16", _AT_SUBMIT)),
            Qos("qos_gpu-dev", ("MaxWall=02:00:00", "MaxTRESPerJob=gres/gpu=32", _AT_SUBMIT)),
            Qos("qos_gpu-gc", ("MaxWall=100:00:00", _AT_SUBMIT)),
        ),
        accounts=(
            Account("six"),
            Account("six@v100", parent="six", qos=("qos_gpu-t3", "qos_gpu-t4", "qos_gpu-dev")),
            Account("six@a100", parent="six", qos=("qos_gpu-t3", "qos_gpu-t4", "qos_gpu-dev", "qos_gpu-gc")),
        ),
        slurm_prefix=slurm_prefix,
    )
