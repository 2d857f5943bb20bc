"""The memory, speed and network of a GPU: from `[gpu]`, else by the name in `[slurm]`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from opsctl.core.errors import UsageError
from opsctl.run.config.schema import GpuTable, SlurmTable
from trainer.recipe.sizes import peak_tflops_of


@dataclass(frozen=True)
class KnownGpu:
    """A GPU's data sheet, and usual facts of nodes with it."""

    name: str  # as in the peaks of `trainer.recipe.sizes`
    pattern: str  # of the name in [slurm]
    memory_gb: float
    link_gbs: float  # in one direction, to the other GPUs of the node
    within_node_gbs: float  # reached by measured all-reduces: about four fifths
    adapter_gbs: float  # each GPU's share of the node's network adapters
    mfu: float  # a usual share of the dense peak, model FLOPs, without a measured speed
    source: str


_A100_PCIE = "A100 PCIe data sheet: PCIe 4.0 x16; NVLink connects pairs alone"
#: Peaks are in `trainer.recipe.sizes`. The first matching pattern counts.
KNOWN: tuple[KnownGpu, ...] = (
    KnownGpu("V100", "v100[^,&|]*32", 32.0, 150.0, 120.0, 12.5, 0.30, "Tesla V100 data sheet; DGX-1: 4 x 100 Gb/s"),
    KnownGpu("V100", "v100", 16.0, 150.0, 120.0, 12.5, 0.30, "Tesla V100 data sheet; DGX-1: 4 x 100 Gb/s"),
    KnownGpu("A100", "a100[^,&|]*40[^,&|]*pcie|a100.?pcie[^,&|]*40", 40.0, 32.0, 25.0, 25.0, 0.40, _A100_PCIE),
    KnownGpu("A100", "a100[^,&|]*pcie", 80.0, 32.0, 25.0, 25.0, 0.40, _A100_PCIE),
    KnownGpu("A100", "a100[^,&|]*40", 40.0, 300.0, 230.0, 25.0, 0.40, "A100 data sheet; DGX A100: 8 x 200 Gb/s"),
    KnownGpu("A100", "a100", 80.0, 300.0, 230.0, 25.0, 0.40, "A100 data sheet; DGX A100: 8 x 200 Gb/s"),
    KnownGpu("H100 NVL", "h100.?nvl", 94.0, 300.0, 240.0, 50.0, 0.35, "H100 data sheet, NVL column"),
    KnownGpu("H100 PCIe", "h100.?pcie", 80.0, 64.0, 50.0, 50.0, 0.35, "H100 PCIe data sheet: PCIe 5.0 x16"),
    KnownGpu("H100", "h100", 80.0, 450.0, 360.0, 50.0, 0.40, "H100 data sheet; DGX H100: 8 x 400 Gb/s"),
    KnownGpu("GH200", "gh200[^,&|]*144", 144.0, 450.0, 360.0, 25.0, 0.40, "GH200 data sheet; 200 Gb/s for each GPU"),
    KnownGpu("GH200", "gh200", 96.0, 450.0, 360.0, 25.0, 0.40, "GH200 data sheet; 200 Gb/s for each GPU"),
    KnownGpu("H200", "h200", 141.0, 450.0, 360.0, 50.0, 0.40, "H200 data sheet; DGX H200: 8 x 400 Gb/s"),
    KnownGpu("GB200", "gb200", 186.0, 900.0, 720.0, 50.0, 0.35, "GB200 NVL72 data sheet; 400 Gb/s for each GPU"),
    KnownGpu("B200", "b200", 180.0, 900.0, 720.0, 50.0, 0.35, "DGX B200 data sheet: 8 x 400 Gb/s"),
    KnownGpu("MI300X", "mi300x", 192.0, 448.0, 358.0, 50.0, 0.30, "Instinct MI300X data sheet: 7 links of 64 GB/s"),
    KnownGpu("L40S", "l40s", 48.0, 32.0, 25.0, 12.5, 0.30, "L40S data sheet: PCIe 4.0 x16; 100 Gb/s for each GPU"),
)
#: A part of a GPU (multi-instance GPU): it has neither the memory nor the peak of the whole.
_PART = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)
_WITHIN_GBS, _BETWEEN_GBS, _MFU = 20.0, 25.0, 0.40


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
        """Return True if torch has no flash attention for it."""
        return self.name == "V100"

    def gbs_of_each(self, in_one_node: bool, per_node: int) -> float:
        """Return the bandwidth of each GPU: to its node's GPUs, or its share of the node's network."""
        return self.within_node_gbs if in_one_node else self.between_nodes_gbs / per_node


def asks_for_v100(slurm: SlurmTable) -> bool:
    """Return True if the run asks Slurm for GPUs without flash attention in torch."""
    return re.search(r"(?<![a-z])v100", _asked_for(slurm), re.IGNORECASE) is not None


@dataclass(frozen=True)
class Peak:
    """The peak of a GPU in the run's precision, and its source."""

    tflops: float  # dense
    source: str  # as "an A100 has"


def planned_peak(table: GpuTable, slurm: SlurmTable, precision: str) -> Peak | None:
    """Return the peak of the run's GPU; None if neither `[gpu]` nor the name in `[slurm]` defines it."""
    if table.peak_tflops:
        return Peak(table.peak_tflops, "[gpu] gives")
    asked = _asked_for(slurm)
    known = _known(asked)
    name = known.name if known else "" if _PART.search(asked) else asked
    stated = peak_tflops_of(name, precision)
    return Peak(stated, f"the maker states for {name}") if stated else None


def gpu_of(table: GpuTable, slurm: SlurmTable, precision: str) -> Gpu:
    """Return the run's GPU. Raises UsageError with the missing keys if memory or speed are unknown."""
    name = _asked_for(slurm)
    known = _known(name)
    memory_gb = table.memory_gb or (known.memory_gb if known else None)
    peak = planned_peak(table, slurm, precision)
    unknown = [key for key, value in (("memory_gb", memory_gb), ("peak_tflops", peak)) if value is None]
    if unknown:
        keys = " and ".join(unknown)
        asked = (
            f"[slurm] asks for {name!r}, which has no known {keys} in {precision}"
            if name
            else "[slurm] has no gpu_type or constraint, so the GPU is unknown"
        )
        raise UsageError(f"{asked}. Set [gpu] {keys} in the run file or a profile")
    assert memory_gb is not None and peak is not None
    within = table.within_node_gbs or (known.within_node_gbs if known else _WITHIN_GBS)
    between = table.between_nodes_gbs or (known.adapter_gbs * slurm.gpus_per_node if known else _BETWEEN_GBS)
    return Gpu((known.name if known else name) or "GPU", memory_gb, peak.tflops, within, between)


@dataclass(frozen=True)
class AssumedSpeed:
    """The assumed speed of a training without measurements."""

    gpu: str
    mfu: float
    peak_tflops: float

    @property
    def tflops(self) -> float:
        """Return the model TFLOP/s of each GPU."""
        return self.mfu * self.peak_tflops


def assumed_speed(table: GpuTable, slurm: SlurmTable, precision: str) -> AssumedSpeed | None:
    """Return a usual share of the GPU's peak; None if the peak is unknown."""
    peak, known = planned_peak(table, slurm, precision), _known(_asked_for(slurm))
    if peak is None:
        return None
    return AssumedSpeed(known.name if known else "this GPU", known.mfu if known else _MFU, peak.tflops)


def _asked_for(slurm: SlurmTable) -> str:
    return " ".join(filter(None, (slurm.gpu_type, slurm.constraint)))


def _known(asked: str) -> KnownGpu | None:
    if _PART.search(asked):
        return None
    return next(
        (one for one in KNOWN if re.search(rf"(?<![a-z0-9])(?:{one.pattern})(?!\d)", asked, re.IGNORECASE)), None
    )
