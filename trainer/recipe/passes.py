"""How often a training goes through its documents, which decides in what order it reads them: Megatron's. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Megatron's share of an epoch's samples below which the last epoch is kept apart. BigScience used 0.95.
SEPARATE_LAST_EPOCH_THRESHOLD = 0.80
#: Megatron builds this much more of each dataset than its share, so that rounding never runs past an end.
SURPLUS = 0.005


@dataclass(frozen=True)
class EpochPlan:
    """How often the documents are gone through."""

    epochs: int
    tokens_per_epoch: int
    samples: int  # in all the epochs
    samples_before_last_epoch: int  # equal to `samples` unless the last epoch is kept apart
    separate_last_epoch: bool


def plan_epochs(
    tokens_per_epoch: int, sequence_length: int, samples: int | None, threshold: float = SEPARATE_LAST_EPOCH_THRESHOLD
) -> EpochPlan:
    """The fewest epochs that give `samples` samples (None: one epoch), and whether the last one is kept apart."""
    epochs = 1
    if samples is not None:
        epochs = max(1, -(-(samples * sequence_length + 1) // tokens_per_epoch))
    total = (epochs * tokens_per_epoch - 1) // sequence_length
    before_last = ((epochs - 1) * tokens_per_epoch - 1) // sequence_length
    separate = False
    if epochs > 1 and samples is not None:
        per_epoch = (tokens_per_epoch - 1) // sequence_length
        separate = samples - before_last < int(threshold * per_epoch)
    return EpochPlan(epochs, tokens_per_epoch, total, before_last if separate else total, separate)


def target_sizes(weights: Sequence[float], samples: int) -> list[int]:
    """Samples that each dataset gives to a blend of `samples`; `weights` add up to one.

    Their sum is the blend's length.
    """
    return [math.ceil(samples * weight) for weight in weights]


def sizes_to_build(weights: Sequence[float], samples: int) -> list[int]:
    """Samples to build of each dataset: its target and the surplus, each rounded up as Megatron does."""
    return [math.ceil(target * (1 + SURPLUS)) for target in target_sizes(weights, samples)]
