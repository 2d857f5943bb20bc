"""The part of a node that belongs to the job. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Who says which GPUs, in order. Where a step sees only its own, it numbers them from 0, and so does the library that is
# asked for their energy; Slurm's numbers are the whole node's.
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_NO_GPU = frozenset({"", "-1", "NoDevFiles"})
_REPEATED = re.compile(r"(?P<cpus>\d+)(\(x(?P<times>\d+)\))?")


@dataclass(frozen=True)
class Allocation:
    """A job's part of one node."""

    host: str  # Slurm's name of the node
    job: str  # as squeue shows it; empty outside of Slurm
    devices: tuple[str, ...] | None  # GPUs; None: all there are
    share: float  # of the node's CPUs, 0 to 1


def allocation(environment: Mapping[str, str], host: str, logical: int, cores: int, allowed: int) -> Allocation:
    """Read this node's allocation from Slurm's variables; the node calls itself `host`.

    logical: the node's CPUs with hyper-threads, `cores` of them without; allowed: those that this process may run on.
    """
    share = _share(environment, logical, cores, allowed)
    name = environment.get("SLURMD_NODENAME", host)
    return Allocation(name, _job(environment), _devices(environment, share), share)


def _job(environment: Mapping[str, str]) -> str:
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")


def _devices(environment: Mapping[str, str], share: float) -> tuple[str, ...] | None:
    for name in _GPU_VARIABLES:
        if name in environment:
            words = environment[name].strip()
            return () if words in _NO_GPU else tuple(word.strip() for word in words.split(",") if word.strip())
    # A job that has no GPUs, unless the site hands out whole nodes without counting them.
    return () if environment.get("SLURM_JOB_ID") and share < 1 else None


def _share(environment: Mapping[str, str], logical: int, cores: int, allowed: int) -> float:
    own = _own_cpus(environment)
    if own is None:
        return 1.0
    # Slurm counts cores or hyper-threads, as the site has set it up; as many as there are cores are the whole node.
    share = own / (cores if own == cores else logical)
    if allowed < logical:  # what the kernel lets it run on is in hyper-threads
        share = max(share, allowed / logical)
    return min(1.0, share)


def _own_cpus(environment: Mapping[str, str]) -> int | None:
    """CPUs of the job on this node; None outside of Slurm and where it does not say."""
    place, each = environment.get("SLURM_NODEID", ""), environment.get("SLURM_JOB_CPUS_PER_NODE", "")
    if place.isdecimal() and each:
        counts: list[int] = []
        for word in each.split(","):
            match = _REPEATED.fullmatch(word.strip())
            if match is None:
                break
            counts += [int(match["cpus"])] * int(match["times"] or 1)
        if int(place) < len(counts):
            return counts[int(place)] or None
    here = environment.get("SLURM_CPUS_ON_NODE", "")
    return int(here) or None if here.isdecimal() else None
