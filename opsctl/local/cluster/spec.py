"""The shape of a local cluster: nodes and partitions. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

#: Each node has its own slurmd, with 2 to 3 MB and about a millisecond of CPU time now and then.
MAX_NODES = 1024


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes. All are this machine: CPUs and memory are those in Slurm's configuration, not the real ones."""

    prefix: str  # "node"
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
    """A partition of slurm.conf."""

    name: str
    nodes: tuple[str, ...]  # folded node lists
    max_time: str = "INFINITE"  # a Slurm duration
    is_default: bool = False


@dataclass(frozen=True)
class Spec:
    """The shape of a cluster. `plain` returns the usual ones."""

    name: str
    shape: str  # for messages: "4 nodes x 2 GPUs"
    node_groups: tuple[NodeGroup, ...]
    partitions: tuple[Partition, ...]
    accounting: bool = False
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
