"""How large the embedding is: the vocabulary padded so that every tensor-parallel rank gets an equal, aligned part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Vocabulary:
    """How many tokens there are, and how many rows the word embedding has: the first `tokens` are theirs."""

    tokens: int
    rows: int

    @classmethod
    def of(cls, tokens: int, options: Mapping[str, Any]) -> Vocabulary:
        """Of `tokens` tokens, padded as the options say. Raises ValueError as `_padded` does."""
        return cls(tokens, _padded(tokens, options))

    @classmethod
    def unpadded(cls, tokens: int) -> Vocabulary:
        """Of as many rows as tokens."""
        return cls(tokens, tokens)


def _padded(vocab_size: int, options: Mapping[str, Any]) -> int:
    """Rows of the word embedding for a vocabulary of `vocab_size` tokens.

    `pad_vocab_size_to` exactly when given, else the next multiple of `make_vocab_size_divisible_by` x TP.
    Raises ValueError (one line) when the given size is too small or cannot be divided.
    """
    wanted: int | None = options["pad_vocab_size_to"]
    if wanted is None:
        multiple: int = options["make_vocab_size_divisible_by"] * options["tensor_model_parallel_size"]
        return -(-vocab_size // multiple) * multiple
    if wanted < vocab_size:
        raise ValueError(
            f"--pad-vocab-size-to {wanted} is smaller than the vocabulary, {vocab_size}: give a larger one"
        )
    if wrong := indivisible_padding(options):
        raise ValueError(wrong)
    return wanted


def indivisible_padding(options: Mapping[str, Any]) -> str | None:
    """By what the given size cannot be divided, in one line; None when none is given or all is well."""
    wanted = options["pad_vocab_size_to"]
    for key in ("make_vocab_size_divisible_by", "tensor_model_parallel_size"):
        if wanted is not None and wanted % options[key]:
            return f"--pad-vocab-size-to {wanted} is not divisible by --{key.replace('_', '-')} {options[key]}"
    return None
