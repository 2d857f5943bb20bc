"""The measures by which nodes are compared, and the search for outliers. Pure; deviations are of the logarithm."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A number per node, GPU or link. suspicious, slow: ratio to the median; slow=None: never slow by it alone."""

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
#: The measures of links, as reasons name them.
LINK_RATES = frozenset(f"{rate.part}.{rate.what}" for rate in RATES if rate.of == "link")
#: Numbers that must be 0: (part, what) -> meaning of any other number.
ZEROES = {
    ("products", "wrong"): "computes wrongly: {n:g} of {tried:g} products of integers are wrong",
    ("gpu_products", "wrong"): "GPU {of} computes wrongly: {n:g} of {tried:g} products of integers are wrong",
    ("memory", "wrong_words"): "memory returns {n:g} words that differ from the written ones",
    ("disk", "wrong_blocks"): "its local disk returns {n:g} MiB that differ from the written data",
    ("shm", "wrong_blocks"): "/dev/shm returns {n:g} MiB that differ from the written data",
    ("run_folder", "wrong_blocks"): "its writes to the run's folder do not read back",
    ("gpus", "ecc_uncorrected"): "GPU {of} has {n:g} uncorrected ECC errors since its driver was loaded",
    ("gpus", "remap_failed"): "GPU {of} could not replace a broken row of its memory",
}
#: Numbers that must be 0, but are only unusual otherwise.
ODDITIES = {
    ("gpus", "remap_pending"): "GPU {of} will replace a row of its memory at its next reset",
    ("gpus", "slowdown"): "GPU {of} is slowed down by its hardware: heat or power",
}
#: Versions that all nodes must share: (what, words, True if a training cannot run otherwise).
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
#: All nodes share the run's folder: a quota or a server's failure first looks like a failure of one node.
RUN_FOLDER_FAILED = "run_folder.failed"
#: The suffix of a measure that ran out of time: a neighbour or a file system may be the cause.
LATE_END = ".late"
#: Problems that prevent a training but are not faults of the node's hardware.
NOT_OF_HARDWARE = frozenset({RUN_FOLDER_FAILED, *(f"machine.{what}" for what, _, _ in SOFTWARE)})
#: Hardware classes with fewer nodes are not compared.
FEWEST = 3
#: Deviations from the median that a rate needs, in addition to the ratio.
SUSPICIOUS_DEVIATIONS, SLOW_DEVIATIONS = 4.0, 8.0
#: A node this many times slower than the slowest other node is slow, whatever the deviations.
FAR_BEHIND = 5.0
#: The relative difference that the order of an fp32 summation can cause.
SUM_TOLERANCE = 1e-4
CLOCK_S = 5.0
#: Lower limits: (part, what) -> limit, message.
LEAST = {
    ("shm", "free_gib"): (1.0, "{n:.2g} GiB are free in /dev/shm"),
    ("disk", "free_gib"): (1.0, "{n:.2g} GiB are free at {where}"),
}
LEFTOVER_MIB = 2048.0
#: The least share of Slurm's RealMemory, and of the median memory of its class.
MEMORY_SHARE = 0.9


#: Converts a median absolute deviation to a standard deviation (Rousseeuw and Croux 1993).
_NORMAL = 1.4826
#: The relative accuracy of a measurement, at best.
_FLOOR = 0.005
#: With few values their deviation is uncertain: this share, divided by their number, is added.
_FEW = 0.3


def slowness(value: float, usual: float, more_is_better: bool) -> float:
    """Return how many times slower than `usual` a value is; above 1 is slower. A value of 0 is infinitely slow."""
    if value <= 0 or usual <= 0 or not math.isfinite(value):
        return math.inf if value <= 0 < usual or not math.isfinite(value) else 1.0
    return usual / value if more_is_better else value / usual


def usual_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return (the median, the robust standard deviation of the logarithm). Values not above 0 are ignored."""
    logs = [math.log(value) for value in values if value > 0 and math.isfinite(value)]
    if not logs:
        return 0.0, math.inf
    middle = statistics.median(logs)
    deviation = _NORMAL * statistics.median(abs(one - middle) for one in logs)
    return math.exp(middle), max(deviation, _FLOOR + _FEW / len(logs))


def deviations(slow: float, deviation: float) -> float:
    """Return the slowness in deviations; negative for faster than usual."""
    return math.log(slow) / deviation if math.isfinite(slow) else math.inf


def minority(texts: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return (the majority's text, name -> text of the others); empty without a majority."""
    if not texts:
        return "", {}
    most = statistics.mode(sorted(texts.values()))
    having = sum(text == most for text in texts.values())
    if 2 * having <= len(texts):
        return "", {}
    return most, {name: text for name, text in texts.items() if text != most}
