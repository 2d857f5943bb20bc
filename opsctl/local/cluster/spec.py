"""The shape of a local cluster: nodes, partitions, reservations, accounts. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Each node has its own slurmd, with 2 to 3 MB and about a millisecond of CPU time now and then.
MAX_NODES = 1024


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes. All are this machine: CPUs and memory are those in Slurm's configuration, not the real ones."""

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
        """Return `count` names with numbers from 1, of equal width: x01 ... x12."""
        width = self.digits or len(str(self.count))
        return tuple(f"{self.prefix}{number:0{width}d}" for number in range(1, self.count + 1))

    @property
    def folded(self) -> str:
        """Return the names in Slurm's form: `node[1-4]`."""
        names = self.names
        if len(names) == 1:
            return names[0]
        return f"{self.prefix}[{names[0][len(self.prefix) :]}-{names[-1][len(self.prefix) :]}]"


@dataclass(frozen=True)
class Partition:
    """A partition of slurm.conf; its accounts apply only with accounting."""

    name: str
    nodes: tuple[str, ...]  # folded node lists
    max_time: str = "INFINITE"  # a Slurm duration
    accounts: tuple[str, ...] = ()  # accounts whose jobs it takes, with accounting; empty: all
    is_default: bool = False


@dataclass(frozen=True)
class Reservation:
    """Nodes reserved for some accounts from the cluster's start on."""

    name: str
    nodes: str
    accounts: tuple[str, ...] = ()  # accounts that may use it, with accounting; else the caller
    flags: str = ""


@dataclass(frozen=True)
class Account:
    """An account of slurmdbd with the limits of its jobs together."""

    name: str
    parent: str = ""
    limits: tuple[str, ...] = ()  # in sacctmgr's syntax: "GrpTRES=gres/gpu=512"
    qos: tuple[str, ...] = ()  # first: the default


@dataclass(frozen=True)
class Qos:
    """A quality of service of slurmdbd with its limits."""

    name: str
    limits: tuple[str, ...] = ()  # "MaxWall=20:00:00"


@dataclass(frozen=True)
class Spec:
    """The shape of a cluster. `plain` and `bloom` return the usual ones."""

    name: str
    shape: str  # the value of `--shape`, for messages: "4 nodes x 2 GPUs", "bloom"
    node_groups: tuple[NodeGroup, ...]
    partitions: tuple[Partition, ...]
    reservations: tuple[Reservation, ...] = ()
    accounting: bool = False
    accounts: tuple[Account, ...] = (Account("opsctl"),)
    qos: tuple[Qos, ...] = ()
    slurm_prefix: str | None = None
    slurmd_timeout_s: int = 20  # a killed slurmd's node is DOWN after this
    one_slurmd: bool = False  # the first node's slurmd answers for all: the others are idle and run nothing
    extra_slurm_conf: tuple[str, ...] = field(default=())

    @property
    def summary(self) -> str:
        """Return the shape for users: `4 nodes x 2 GPUs, accounting`."""
        prefix = f"Slurm of {self.slurm_prefix}" if self.slurm_prefix else ""
        simulated = "all but the first only simulated" if self.one_slurmd else ""
        return ", ".join(filter(None, (self.shape, simulated, "accounting" if self.accounting else "", prefix)))

    @property
    def slurm_name(self) -> str:
        """Return `name` in the form that Slurm and its database accept: small letters, digits, - and _."""
        return re.sub(r"[^a-z0-9_-]+", "-", self.name.lower()).strip("-")[:40] or "local"

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return the names of all nodes, by group."""
        return tuple(name for group in self.node_groups for name in group.names)

    @property
    def slurmd_names(self) -> tuple[str, ...]:
        """Return the nodes with their own slurmd."""
        return self.node_names[:1] if self.one_slurmd else self.node_names

    @property
    def gpus_per_node(self) -> int:
        """Return the number of GPUs per node in the group with the most; other groups may have fewer."""
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
    """Return `nodes` equal nodes with `gpus` simulated GPUs each and one partition, `main`, without a time limit."""
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


#: Without it Slurm accepts a job over a limit, and the job waits forever.
_AT_SUBMIT = "Flags=DenyOnLimit"


def bloom(name: str = "bloom", *, accounting: bool = False, slurm_prefix: str | None = None) -> Spec:
    """Return the part of Jean Zay for BLOOM and tr1-13B: 52 nodes x 8 A100 in gpu_p5, 32 x 4 V100 in gpu_p13."""
    a100 = NodeGroup("jean-zay-iam", 52, 8, "a100", cpus=64, memory_mib=512_000, features=("a100",))
    v100 = NodeGroup("jean-zay-v", 32, 4, "v100", cpus=40, memory_mib=192_000, features=("v100", "v100-32g"))
    # Without QoS only the partition can set the 20 hours of V100 jobs.
    v100_limit = "100:00:00" if accounting else "20:00:00"
    return Spec(
        name=name,
        shape="bloom",
        node_groups=(a100, v100),
        partitions=(
            Partition("gpu_p5", (a100.folded,), max_time="100:00:00", accounts=("six@a100",)),
            Partition("gpu_p13", (v100.folded,), max_time=v100_limit, accounts=("six@v100",), is_default=True),
        ),
        # Magnetic: its accounts need not name it, otherwise nothing would start on these nodes.
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
