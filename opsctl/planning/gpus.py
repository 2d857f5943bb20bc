"""What a search knows of a GPU and of what connects it: from `[gpu]`, else by the name that Slurm is asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opsctl.errors import UsageError
from opsctl.runs.schema import GpuTable, SlurmTable
from trainer.recipe.throughput import peak_tflops_of

#: Name -> GB of memory, and GB/s that each GPU moves to the others of its node, as measured all-reduces have it.
_KNOWN: tuple[tuple[str, float, float], ...] = (
    (r"(?<![a-z])v100.*32", 32.0, 120.0),
    (r"(?<![a-z])v100", 16.0, 120.0),
    (r"(?<![a-z])a100.*40", 40.0, 230.0),
    (r"(?<![a-z])a100", 80.0, 230.0),
    (r"(?<![a-z])h100", 80.0, 360.0),
    (r"(?<![a-z])h200", 141.0, 360.0),
)
_NAME = re.compile(r"[vah]\d00")
_WITHIN_GBS, _BETWEEN_GBS = 20.0, 25.0


@dataclass(frozen=True)
class Gpu:
    """One GPU: memory in GB (10^9 bytes), dense TFLOP/s, and bandwidths in GB/s."""

    name: str
    memory_gb: float
    peak_tflops: float
    within_node_gbs: float  # of each GPU
    between_nodes_gbs: float  # of each node

    @property
    def is_before_ampere(self) -> bool:
        """Whether torch has no flash attention for it."""
        return self.name == "V100"

    def gbs_of_each(self, in_one_node: bool, per_node: int) -> float:
        """What each GPU has to others: those of its node, or its share of what leaves the node."""
        return self.within_node_gbs if in_one_node else self.between_nodes_gbs / per_node


def asks_for_v100(slurm: SlurmTable) -> bool:
    """Whether Slurm is asked for GPUs that torch has no flash attention for."""
    return re.search(r"(?<![a-z])v100", _asked_for(slurm), re.IGNORECASE) is not None


@dataclass(frozen=True)
class Peak:
    """What a GPU can do in the run's precision, and who says so."""

    tflops: float  # dense
    source: str  # as "an A100 has"


def planned_peak(table: GpuTable, slurm: SlurmTable, precision: str) -> Peak | None:
    """The peak of the run's GPU; None where neither `[gpu]` nor the name that Slurm is asked for tells it."""
    if table.peak_tflops:
        return Peak(table.peak_tflops, "[gpu] gives")
    asked = _asked_for(slurm)
    known = _known(asked)
    name = _letters(known) if known else asked
    stated = peak_tflops_of(name, precision)
    return Peak(stated, f"the maker states for {name}") if stated else None


def gpu_of(table: GpuTable, slurm: SlurmTable, precision: str) -> Gpu:
    """The run's GPU. Raises UsageError, naming the keys, where memory or speed are not known."""
    name = _asked_for(slurm)
    known = _known(name)
    memory_gb = table.memory_gb or (known[1] if known else None)
    peak = planned_peak(table, slurm, precision)
    unknown = [key for key, value in (("memory_gb", memory_gb), ("peak_tflops", peak)) if value is None]
    if unknown:
        keys = " and ".join(unknown)
        asked = (
            f"[slurm] asks for {name!r}, of which no {keys} is known in {precision}"
            if name
            else "[slurm] has no gpu_type or constraint, so the GPU is not known"
        )
        raise UsageError(f"{asked}: give [gpu] {keys}, in the run file or a profile")
    assert memory_gb is not None and peak is not None
    within = table.within_node_gbs or (known[2] if known else _WITHIN_GBS)
    letters = _letters(known) if known else name
    return Gpu(letters or "GPU", memory_gb, peak.tflops, within, table.between_nodes_gbs or _BETWEEN_GBS)


def _asked_for(slurm: SlurmTable) -> str:
    return " ".join(filter(None, (slurm.gpu_type, slurm.constraint)))


def _known(asked: str) -> tuple[str, float, float] | None:
    return next((one for one in _KNOWN if re.search(one[0], asked, re.IGNORECASE)), None)


def _letters(known: tuple[str, float, float]) -> str:
    found: str = _NAME.findall(known[0])[0]
    return found.upper()
