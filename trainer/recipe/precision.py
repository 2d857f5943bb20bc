"""In which numbers a model computes and is stored: fp32, or half-precision bf16 or fp16 beside fp32 copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def precision_of(options: Mapping[str, Any]) -> str:
    """`bf16`, `fp16` or `fp32`, as manifests call it."""
    return "bf16" if options["bf16"] else "fp16" if options["fp16"] else "fp32"


def is_half(precision: str) -> bool:
    """Whether a weight of the model takes 2 bytes and not 4."""
    return precision != "fp32"
