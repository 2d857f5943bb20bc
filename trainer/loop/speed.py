"""How fast a training is on the device at hand, and what the numbers in its log mean."""

from __future__ import annotations

import torch

from trainer.parallel.process_groups import Parallel
from trainer.recipe.model_options import (
    ATTENTION,
    BLOCK,
    NONE,
    precision_of,
    recomputed,
)
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.sizes import Throughput, parameters, peak_tflops_of

_COUNTED = {
    NONE: "model and hardware FLOPs, which are equal as nothing is recomputed",
    ATTENTION: "hardware FLOPs, with recomputed attention; model FLOPs are without",
    BLOCK: "hardware FLOPs, with recomputed activations; model FLOPs are without",
}


def throughput_of(options: Options, parallel: Parallel, shape: ModelShape) -> Throughput:
    """What the log's speeds are worked out with."""
    peak = _peak(options, parallel)
    return Throughput(shape, options.seq_length, parallel.world_size, recomputed(options), peak)


def size_lines(parallel: Parallel, throughput: Throughput) -> list[str]:
    """How large the model is, and of what the log's TFLOPs and MFU are."""
    lines = [f"{parameters(throughput.shape):,} parameters on {parallel.world_size} ranks: {parallel.layout}"]
    lines.append(f"TFLOPs in the log are each rank's {_COUNTED[throughput.recompute]}")
    if (peak := throughput.peak_tflops) is not None:
        lines.append(f"MFU in the log is what the model FLOPs are of {peak:g} TFLOPs, each rank's peak")
    return lines


def _peak(options: Options, parallel: Parallel) -> float | None:
    """TFLOP/s that this rank's device can do: as stated, or as its name says; None where nobody knows."""
    stated: float | None = options.peak_tflops
    if stated is not None or parallel.device.type != "cuda":
        return stated
    return peak_tflops_of(torch.cuda.get_device_name(parallel.device), precision_of(options))
