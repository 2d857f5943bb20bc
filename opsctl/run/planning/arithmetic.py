"""The usual formulas for planning a training. Pure; units are in the names."""

from __future__ import annotations

import math

from trainer.recipe.sizes import (
    CHECKPOINT_BYTES_PER_PARAMETER,
    GIB,
    HALF_BYTES_PER_PARAMETER,
    HARDWARE_PASSES,
    TRAINING_BYTES_PER_PARAMETER,
)

DAY_S = 86_400
#: Bytes per parameter in fp32: weights; and with Adam's two moments and the engine's copy of the weights.
FP32_BYTES_PER_PARAMETER = 4
FP32_CHECKPOINT_BYTES_PER_PARAMETER = 16


def training_days(parameters: float, tokens: float, gpus: float, tflops: float) -> float:
    """Return the days to train on `tokens` tokens at `tflops` hardware TFLOP/s per GPU: 8 T P / (n X).

    8 = 2 operations x (1 forward + 2 backward + 1 recomputed forward) per parameter and token.
    """
    return tokens * 2 * HARDWARE_PASSES * parameters / (gpus * tflops * 1e12 * DAY_S)


def days_left(
    consumed_tokens: float, goal_tokens: float, iteration_s: float, batch_size: float, sequence_length: float
) -> float:
    """Return the days until `goal_tokens`, with `iteration_s` seconds per step of `batch_size` samples."""
    return iteration_s * (goal_tokens - consumed_tokens) / (batch_size * sequence_length * DAY_S)


def weights_gib(parameters: float, half: bool = True) -> float:
    """Return the GiB of the weights alone: 2 bytes per parameter in 16 bits, else 4."""
    return parameters * (HALF_BYTES_PER_PARAMETER if half else FP32_BYTES_PER_PARAMETER) / GIB


def checkpoint_gib(parameters: float, half: bool = True) -> float:
    """Return the GiB of a checkpoint for resuming: 14 bytes per parameter in 16 bits, else 16."""
    return parameters * (CHECKPOINT_BYTES_PER_PARAMETER if half else FP32_CHECKPOINT_BYTES_PER_PARAMETER) / GIB


def memory_gb(parameters: float) -> float:
    """Return the GB (10^9 bytes) of one replica's weights, gradients and optimizer states: 18 bytes per parameter."""
    return parameters * TRAINING_BYTES_PER_PARAMETER / 1e9


def init_std_third(hidden: int) -> float:
    """Return sqrt(1/(3h)). Source: Smith et al., arXiv 2201.11990."""
    return math.sqrt(1 / (3 * hidden))


def init_std_two_fifths(hidden: int) -> float:
    """Return sqrt(2/(5h)). Source: Nguyen and Salazar, arXiv 1910.05895."""
    return math.sqrt(2 / (5 * hidden))
