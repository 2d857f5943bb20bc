"""The table of what is compared between nodes, and how outliers are found. Pure; distances are in the logarithm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A number per node, GPU or link. suspicious, slow: times slower than the median; None: never slow by it alone."""

    part: str
    what: str
    words: str
    unit: str
    suspicious: float
    slow: float | None
    more_is_better: bool = True
    of: str = ""  # what `ProbeLine.of` counts: GPU, link


RATES = (
    Measure("products", "fp32_gflops", "matrix products", "GFLOP/s", 1.1, 1.25),
    Measure("memory", "copy_gbs", "memory bandwidth", "GB/s", 1.15, 1.4),
    Measure("gpu_products", "bf16_tflops", "bf16 matrix products", "TFLOP/s", 1.06, 1.15, of="GPU"),
    Measure("gpu_products", "fp32_tflops", "fp32 matrix products", "TFLOP/s", 1.06, 1.15, of="GPU"),
    Measure("gpu_products", "copy_gbs", "GPU memory bandwidth", "GB/s", 1.06, 1.2, of="GPU"),
    Measure("network", "link_gbs", "network bandwidth", "GB/s", 1.3, 2.0, of="link"),
    Measure("network", "link_latency_us", "network latency", "us", 2.0, 5.0, more_is_better=False, of="link"),
    Measure("disk", "write_mbs", "writing to its own disk", "MB/s", 3.0, None),
    Measure("disk", "read_mbs", "reading from its own disk", "MB/s", 3.0, None),
    Measure("run_folder", "write_ms", "writing to the run's folder", "ms", 5.0, None, more_is_better=False),
)
#: Of those, what a link is measured by, as reasons name it.
LINK_RATES = frozenset(f"{rate.part}.{rate.what}" for rate in RATES if rate.of == "link")
#: Numbers that have to be 0: (part, what) -> what another one means.
ZEROES = {
    ("products", "wrong"): "computes wrong: {n:g} of {tried:g} products of whole numbers are not right",
    ("gpu_products", "wrong"): "GPU {of} computes wrong: {n:g} of {tried:g} products of whole numbers are not right",
    ("memory", "wrong_words"): "memory gives back {n:g} words other than they were written",
    ("disk", "wrong_blocks"): "its own disk gives back {n:g} MiB other than they were written",
    ("shm", "wrong_blocks"): "/dev/shm gives back {n:g} MiB other than they were written",
    ("run_folder", "wrong_blocks"): "what it wrote to the run's folder does not come back",
    ("gpus", "ecc_uncorrected"): "GPU {of} has {n:g} uncorrected ECC errors since its driver was loaded",
    ("gpus", "remap_failed"): "GPU {of} could not replace a broken row of its memory",
}
#: The same, of which nothing worse is known than that it is unusual.
ODDITIES = {
    ("gpus", "remap_pending"): "GPU {of} has a row of its memory to be replaced at its next reset",
    ("gpus", "slowdown"): "GPU {of} is slowed down by its hardware: heat or power",
}
#: Texts that all nodes have to agree on: (what, words, whether a training cannot go on otherwise).
SOFTWARE = (
    ("python", "Python", True),
    ("torch", "torch", True),
    ("deepspeed", "DeepSpeed", True),
    ("opsctl", "opsctl", True),
    ("nvidia-nccl-cu12", "NCCL", True),
    ("nvidia-nccl-cu13", "NCCL", True),
    ("numpy", "numpy", False),
    ("nvidia-cudnn-cu12", "cuDNN", False),
    ("driver", "NVIDIA driver", False),
    ("kernel", "kernel", False),
)
#: The run's folder is everybody's: a quota or a server's fault looks as one node's where that came first.
RUN_FOLDER_FAILED = "run_folder.failed"
#: How a measure ends that only says that a time was up: a neighbour or a file system may be to blame.
LATE_END = ".late"
#: What a training cannot have, and is no fault of a node's hardware.
NOT_OF_HARDWARE = frozenset({RUN_FOLDER_FAILED, *(f"machine.{what}" for what, _, _ in SOFTWARE)})
#: A class of hardware with fewer nodes is not compared.
FEWEST = 3
#: How many of its class's usual deviations a rate has to be off, beside the ratio.
SUSPICIOUS_DEVIATIONS, SLOW_DEVIATIONS = 4.0, 8.0
#: So many times slower than the slowest other node is slow, however those differ.
FAR_BEHIND = 5.0
#: A sum of fp32 numbers may be off by so much between ways of adding it up, as a share.
SUM_TOLERANCE = 1e-4
CLOCK_S = 5.0
#: Numbers that must not be less: (part, what) -> the least, and the words for less.
LEAST = {
    ("shm", "free_gib"): (1.0, "{n:.2g} GiB are free in /dev/shm"),
    ("disk", "free_gib"): (1.0, "{n:.2g} GiB are free at {where}"),
}
LEFTOVER_MIB = 2048.0
#: Of Slurm's RealMemory, and of the median of the nodes of its class.
MEMORY_SHARE = 0.9


#: A median absolute deviation as a standard deviation of normal numbers (Rousseeuw and Croux 1993).
_NORMAL = 1.4826
#: Measurements are no better than this, however well most agree, as a share.
_FLOOR = 0.005
#: A few values that agree say little about how much such values differ: this share, divided by their number, more.
_FEW = 0.3


def slowness(value: float, usual: float, more_is_better: bool) -> float:
    """How many times slower than `usual`: above 1 is slower. A value of nothing is slow without end."""
    if value <= 0 or usual <= 0 or not math.isfinite(value):
        return math.inf if value <= 0 < usual or not math.isfinite(value) else 1.0
    return usual / value if more_is_better else value / usual


def usual_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """(the median, the robust standard deviation of the logarithm from it). What is not above 0 does not count."""
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    if not logs:
        return 0.0, math.inf
    middle = statistics.median(logs)
    deviation = _NORMAL * statistics.median(abs(one - middle) for one in logs)
    return math.exp(middle), max(deviation, _FLOOR + _FEW / len(logs))


def deviations(slow: float, deviation: float) -> float:
    """By how many deviations a slowness is off; negative for what is faster than usual."""
    return math.log(slow) / deviation if math.isfinite(slow) else math.inf


def minority(texts: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """(what most have, name -> text of those who have another); nobody is in the minority where no text has a half."""
    if not texts:
        return "", {}
    most = statistics.mode(sorted(texts.values()))
    having = sum(text == most for text in texts.values())
    if 2 * having <= len(texts):
        return "", {}
    return most, {name: text for name, text in texts.items() if text != most}
