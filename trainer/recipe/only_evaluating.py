"""Whether a training takes no step and only evaluates what it loads. Pure, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Options of one meaning, by their keys: this trainer's name, the originals', Megatron-LM's.
EVALUATE_ONLY = ("eval_only", "no_train", "skip_train")


def only_evaluates(options: Mapping[str, Any]) -> bool:
    """Whether no step is to be taken."""
    return any(options[key] for key in EVALUATE_ONLY)
