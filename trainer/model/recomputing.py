"""Running a part of the model without keeping what it computes: the backward pass computes it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import checkpoint

from trainer.model.dropout import DropoutClock


def again(function: Callable[..., Any], clock: DropoutClock, *inputs: Any) -> Any:
    """function(*inputs), of which autograd keeps `inputs` alone. The second time draws the same dropout masks."""
    sample = clock.sample

    def at_that_time(*same_inputs: Any) -> Any:
        with clock.at(sample):
            return function(*same_inputs)

    return checkpoint(at_that_time, *inputs, use_reentrant=False, preserve_rng_state=False)
