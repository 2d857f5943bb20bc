"""What the forward pass does not keep, and the backward pass computes again. Pure, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NONE, ATTENTION, BLOCK = "none", "attention", "block"
#: What `--recompute` can be, from the most memory to the least: the options of one training mean one of them.
RECOMPUTE = (NONE, ATTENTION, BLOCK)
#: Older names of `--recompute block`.
_OF_BLOCKS = ("checkpoint_activations", "deepspeed_activation_checkpointing")
_SPLIT = ("partition_activations", "distribute_checkpointed_activations")


def recomputed(options: Mapping[str, Any]) -> str:
    """One of RECOMPUTE: as `--recompute` says, or by its older names.

    `attention`: all between the product that makes queries, keys and values and the one after attention, as Korthikanti
    et al., arXiv 2205.05198, select it. `block`: all of each block but what enters it.
    """
    chosen: str | None = options["recompute"]
    if chosen is not None:
        return chosen
    return BLOCK if any(options[key] for key in _OF_BLOCKS) else NONE


def asks_to_recompute(arguments: Sequence[str]) -> bool:
    """Whether a command line, not read yet, names any of it."""
    names = {_name(key) for key in ("recompute", *_OF_BLOCKS)}
    return any(word.partition("=")[0] in names for word in arguments)


def recomputation_errors(options: Mapping[str, Any]) -> list[str]:
    """What contradicts what in it; both options are named."""
    chosen = options["recompute"]
    errors = [
        f"--recompute {chosen} with {_name(key)}, which means --recompute block: give one of them"
        for key in _OF_BLOCKS
        if options[key] and chosen not in (None, BLOCK)
    ]
    if recomputed(options) == BLOCK:
        return errors
    return errors + [
        f"{_name(key)} without --checkpoint-activations: nothing is recomputed whose start could be split"
        for key in _SPLIT
        if options[key]
    ]


def _name(key: str) -> str:
    return "--" + key.replace("_", "-")
