"""How fast a training is: floating-point operations and tokens a second, and their share of what a device can do.

Model FLOPs are those that the network asks for, hardware FLOPs count recomputed activations too; MFU is the share of
the peak that the model FLOPs are. Both by equation 3 of Narayanan et al., arXiv 2104.04473.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainer.recipe.model_shape import ModelShape
from trainer.recipe.sizes import MODEL_PASSES, PASSES, tflops_per_gpu

#: Dense TFLOP/s of one device in bf16 and fp16 with fp32 sums, as its maker states them; the first name that fits.
_PEAKS: tuple[tuple[str, float], ...] = (
    (r"\bGB200\b", 2500.0),
    (r"\bB200\b", 2250.0),
    (r"\b(H200|GH200)\b", 989.4),
    (r"\bH100 PCIe\b", 756.0),
    (r"\bH100 NVL\b", 835.0),
    (r"\bH100\b", 989.4),
    (r"\bA100\b", 312.0),
    (r"\bA40\b", 149.7),
    (r"\bA30\b", 165.0),
    (r"\bA10\b", 125.0),
    (r"\bL40S\b", 362.0),
    (r"\bL4\b", 121.0),
    (r"\bRTX 4090\b", 165.2),
    (r"\bRTX 3090\b", 71.0),
    (r"\bMI300X\b", 1307.4),
    (r"\bMI250X\b", 191.5),  # of one of its two halves, which are a device each
)
#: These compute in fp16 alone.
_PEAKS_FP16: tuple[tuple[str, float], ...] = ((r"\bV100-PCIE\b", 112.0), (r"\bV100\b", 125.0))


def peak_tflops_of(device: str, precision: str) -> float | None:
    """Dense TFLOP/s of the device of that name in bf16 or fp16; None for one that is not known, and in fp32."""
    if precision not in ("bf16", "fp16"):
        return None
    known = _PEAKS + (_PEAKS_FP16 if precision == "fp16" else ())
    return next((peak for name, peak in known if re.search(name, device)), None)


@dataclass(frozen=True)
class Speed:
    """How fast some steps were; all of each rank's device."""

    hardware_tflops: float
    model_tflops: float
    mfu: float | None  # 0 to 1; None without a peak
    tokens_per_second: float


@dataclass(frozen=True)
class Throughput:
    """What it takes to say of so many samples in so many seconds how fast that is."""

    shape: ModelShape
    sequence_length: int
    ranks: int
    recompute: str  # as `recomputation.recomputed` says it
    peak_tflops: float | None = None

    def of(self, samples: int, seconds: float) -> Speed:
        """The speed of steps on `samples` samples, all replicas' together, that took `seconds`."""
        model, hardware = (
            tflops_per_gpu(self.shape, samples, self.sequence_length, seconds, self.ranks, *passes)
            for passes in ((MODEL_PASSES,), PASSES[self.recompute])
        )
        return Speed(
            hardware_tflops=hardware,
            model_tflops=model,
            mfu=model / self.peak_tflops if self.peak_tflops else None,
            tokens_per_second=samples * self.sequence_length / (seconds * self.ranks),
        )
