"""Whether tensor-parallel ranks split the sequence between the layers that they split. Pure, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def splits_sequence(options: Mapping[str, Any]) -> bool:
    """Whether each tensor-parallel rank has a slice of the residual stream; a rank alone has all of it."""
    return bool(options["sequence_parallel"] and options["tensor_model_parallel_size"] > 1)


def sequence_notices(options: Mapping[str, Any]) -> tuple[str, ...]:
    """What to say of the option where it changes nothing."""
    if not options["sequence_parallel"] or splits_sequence(options):
        return ()
    return ("--sequence-parallel changes nothing: with --tensor-model-parallel-size 1 there is nobody to split with",)


def sequence_errors(options: Mapping[str, Any]) -> list[str]:
    """What cannot be split, and what does not go with splitting it."""
    if not splits_sequence(options):
        return []
    length, tensor = options["seq_length"], options["tensor_model_parallel_size"]
    errors = []
    if length is not None and length % tensor:
        errors.append(
            f"--seq-length {length} is not divisible by --tensor-model-parallel-size {tensor}, "
            "over which --sequence-parallel splits it"
        )
    return errors + [
        f"--{key.replace('_', '-')} with --sequence-parallel: what enters a block is split already, leave the first out"
        for key in ("partition_activations", "distribute_checkpointed_activations")
        if options[key]
    ]
