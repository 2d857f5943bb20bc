"""The partitions that a Slurm offers this user, with the hardware of their nodes, and the user's accounts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.core.account import account_name
from opsctl.core.errors import SlurmError
from opsctl.slurm.client import Deadline
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.process import refused, run_slurm
from opsctl.slurm.rows import queue_format, rows

_FIELDS = ("Partition", "Time", "Nodes", "CPUs", "Gres")
_GPUS = re.compile(r"gpu(?::(?!\d+(?:\(|$))(?P<type>[^:,()]+))?(?::(?P<number>\d+))?(?:\(.*\))?")
_UNLIMITED = ("infinite", "UNLIMITED", "n/a")


@dataclass(frozen=True)
class Offer:
    """The nodes of one kind in a partition."""

    partition: str
    is_default: bool
    nodes: int
    cpus_per_node: int
    gpus_per_node: int
    gpu_type: str | None  # as `--gres=gpu:TYPE:N` has it
    time_limit: str | None  # a Slurm duration; None: none


def offers(cluster: Cluster, deadline: Deadline) -> list[Offer]:
    """Return sinfo's list, those with GPUs and the default partition first. Raises as SlurmReader does."""
    command = ["sinfo", "--local", "--noheader", f"--Format={queue_format(_FIELDS)}"]
    answer = run_slurm(command, cluster.environment(), deadline.remaining_s())
    if answer.code != 0:
        raise refused(answer, "show its partitions")
    return parse_offers(answer.stdout)


def parse_offers(text: str) -> list[Offer]:
    """Rows of sinfo in `_FIELDS`: nodes of one kind are counted together, whatever state they are in."""
    counted: dict[tuple[str, str, str, str], int] = {}
    for name, limit, nodes, cpus, gres in rows(text, len(_FIELDS)):
        if nodes.isdigit():
            kind = (name, limit, cpus, re.sub(r"\(.*?\)", "", gres))
            counted[kind] = counted.get(kind, 0) + int(nodes)
    found = [_offer(*kind, nodes) for kind, nodes in counted.items()]
    return sorted(found, key=lambda one: (not one.gpus_per_node, not one.is_default, -one.nodes, one.partition))


def _offer(name: str, limit: str, cpus: str, gres: str, nodes: int) -> Offer:
    gpus = next((match for one in gres.split(",") if (match := _GPUS.fullmatch(one.strip()))), None)
    return Offer(
        partition=name.removesuffix("*"),
        is_default=name.endswith("*"),
        nodes=nodes,
        cpus_per_node=int(re.match(r"\d*", cpus)[0] or 0),  # type: ignore[index]  # it matches an empty text too
        gpus_per_node=int(gpus["number"] or 1) if gpus else 0,
        gpu_type=gpus["type"] if gpus else None,
        time_limit=None if limit in _UNLIMITED else limit,
    )


def accounts(cluster: Cluster, deadline: Deadline) -> list[str]:
    """Return the caller's accounts, default first, if there is accounting. Raises SlurmUnreachable and SlurmMissing."""
    listed = _sacctmgr(cluster, deadline, ["show", "associations", f"user={account_name()}", "format=Account"])
    default = _sacctmgr(cluster, deadline, ["show", "user", account_name(), "format=DefaultAccount"])
    return sorted(dict.fromkeys(listed), key=lambda one: one not in default)


def _sacctmgr(cluster: Cluster, deadline: Deadline, words: Iterable[str]) -> list[str]:
    try:
        answer = run_slurm(
            ["sacctmgr", "--noheader", "--parsable2", "--readonly", *words],
            cluster.environment(),
            deadline.remaining_s(),
        )
    except SlurmError:
        return []  # a site without accounting has nothing that answers
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.code == 0 else []
