"""The shape of a local cluster: nodes, partitions, reservations, accounts. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Each is a slurmd of its own, of 2 to 3 MB and a millisecond now and then.
MAX_NODES = 1024


@dataclass(frozen=True)
class NodeGroup:
    """Nodes that are alike. All really are this machine: CPUs and memory are what Slurm is told, not what is there."""

    prefix: str  # "jean-zay-iam"
    count: int
    gpus: int
    gpu_type: str
    cpus: int
    memory_mib: int
    features: tuple[str, ...] = ()
    digits: int = 0  # 0: as many as the last number needs

    @property
    def names(self) -> tuple[str, ...]:
        """`count` names, numbered from 1, all of one width: x01 ... x12."""
        width = self.digits or len(str(self.count))
        return tuple(f"{self.prefix}{number:0{width}d}" for number in range(1, self.count + 1))

    @property
    def folded(self) -> str:
        """As Slurm folds it: `node[1-4]`."""
        names = self.names
        if len(names) == 1:
            return names[0]
        return f"{self.prefix}[{names[0][len(self.prefix) :]}-{names[-1][len(self.prefix) :]}]"


@dataclass(frozen=True)
class Partition:
    """A partition of slurm.conf; whom it takes jobs from counts only where there is accounting."""

    name: str
    nodes: tuple[str, ...]  # folded node lists
    max_time: str = "INFINITE"  # a Slurm duration
    accounts: tuple[str, ...] = ()  # whose jobs it takes when there is accounting; empty: everybody's
    is_default: bool = False


@dataclass(frozen=True)
class Reservation:
    """Nodes kept, from the cluster's start on, for some accounts."""

    name: str
    nodes: str
    accounts: tuple[str, ...] = ()  # who may use it when there is accounting; else the caller
    flags: str = ""


@dataclass(frozen=True)
class Account:
    """An account of slurmdbd's with what its jobs may have together."""

    name: str
    parent: str = ""
    limits: tuple[str, ...] = ()  # sacctmgr's own words: "GrpTRES=gres/gpu=512"
    qos: tuple[str, ...] = ()  # first: the default


@dataclass(frozen=True)
class Qos:
    """A quality of service of slurmdbd's and its limits."""

    name: str
    limits: tuple[str, ...] = ()  # "MaxWall=20:00:00"


@dataclass(frozen=True)
class Spec:
    """A whole cluster. `plain` and `shapes.bloom` make the usual ones."""

    name: str
    shape: str  # what `--shape` said, for messages: "4 nodes x 2 GPUs", "bloom"
    node_groups: tuple[NodeGroup, ...]
    partitions: tuple[Partition, ...]
    reservations: tuple[Reservation, ...] = ()
    accounting: bool = False
    accounts: tuple[Account, ...] = (Account("opsctl"),)
    qos: tuple[Qos, ...] = ()
    slurm_prefix: str | None = None
    slurmd_timeout_s: int = 20  # a killed slurmd's node is DOWN after this
    one_slurmd: bool = False  # the first node's answers for all: they are idle and can be asked for, and run nothing
    extra_slurm_conf: tuple[str, ...] = field(default=())

    @property
    def summary(self) -> str:
        """For people: `4 nodes x 2 GPUs, accounting`."""
        prefix = f"Slurm of {self.slurm_prefix}" if self.slurm_prefix else ""
        simulated = "all but the first only simulated" if self.one_slurmd else ""
        return ", ".join(filter(None, (self.shape, simulated, "accounting" if self.accounting else "", prefix)))

    @property
    def slurm_name(self) -> str:
        """`name` as Slurm and its database take one: small letters, digits, - and _."""
        return re.sub(r"[^a-z0-9_-]+", "-", self.name.lower()).strip("-")[:40] or "local"

    @property
    def node_names(self) -> tuple[str, ...]:
        """All nodes' names, group after group."""
        return tuple(name for group in self.node_groups for name in group.names)

    @property
    def slurmd_names(self) -> tuple[str, ...]:
        """The nodes that have a slurmd of their own."""
        return self.node_names[:1] if self.one_slurmd else self.node_names

    @property
    def gpus_per_node(self) -> int:
        """Those of the group that has most; others may have fewer."""
        return max(group.gpus for group in self.node_groups)


def plain(
    name: str = "local",
    nodes: int = 4,
    gpus: int = 2,
    *,
    accounting: bool = False,
    slurm_prefix: str | None = None,
    one_slurmd: bool = False,
) -> Spec:
    """`nodes` equal nodes with `gpus` make-believe GPUs each and one partition, `main`, without a time limit."""
    group = NodeGroup("node", nodes, gpus, "local", cpus=max(16, 8 * gpus), memory_mib=65536)
    return Spec(
        name=name,
        shape=f"{nodes} node{'s' * (nodes != 1)} x {gpus} GPU{'s' * (gpus != 1)}",
        node_groups=(group,),
        partitions=(Partition("main", (group.folded,), is_default=True),),
        accounting=accounting,
        slurm_prefix=slurm_prefix,
        one_slurmd=one_slurmd,
    )


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
