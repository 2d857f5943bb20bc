"""The random generators' states as plain data and tensors, so that reading a checkpoint needs none of our classes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch


def random_states() -> dict[str, Any]:
    """States of Python's, numpy's, torch's and, where one is used, the GPU's generator, under Megatron's names.

    Dropout draws from seeds of its own and needs none of them; they are for whatever else draws.
    """
    kind, keys, position, has_gauss, cached = numpy.random.get_state()
    states: dict[str, Any] = {
        "random_rng_state": random.getstate(),
        "np_rng_state": (str(kind), torch.from_numpy(numpy.asarray(keys).astype("int64")), position, has_gauss, cached),
        "torch_rng_state": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():
        states["cuda_rng_state"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: Mapping[str, Any]) -> None:
    """Set what `random_states` returned; states that are not there stay as they are."""
    if "random_rng_state" in states:
        random.setstate(states["random_rng_state"])
    if "np_rng_state" in states:
        kind, keys, position, has_gauss, cached = states["np_rng_state"]
        numpy.random.set_state((kind, keys.numpy().astype("uint32"), position, has_gauss, cached))
    if "torch_rng_state" in states:
        torch.set_rng_state(states["torch_rng_state"].cpu())
    if "cuda_rng_state" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda_rng_state"].cpu())
