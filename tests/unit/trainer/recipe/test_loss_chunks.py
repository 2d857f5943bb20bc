"""Chunks of the loss: large enough against the weight's traffic, and bounded."""

from __future__ import annotations

import itertools

import pytest

from trainer.recipe.activations import (
    LEAST_LOGITS,
    LEAST_TOKENS,
    chunk_tokens,
    chunks_of,
)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_chunks_cover_all_tokens_none_below_the_least_size_or_twice_that(device: str) -> None:
    all_tokens = (1, 7, 511, 512, 513, 1023, 2048, 2049, 4095, 10_000)
    for rows, tokens in itertools.product((1, 16, 4096, 62_720, 250_880), all_tokens):
        chunks = chunks_of(tokens, rows, device)
        sizes = [one.stop - one.start for one in chunks]
        assert [number for one in chunks for number in range(one.start, one.stop)] == list(range(tokens))
        least = max(LEAST_TOKENS[device], LEAST_LOGITS[device] // rows)
        assert min(sizes) >= min(tokens, least)
        assert max(sizes) == chunk_tokens(tokens, rows, device) < 2 * least
        assert max(sizes) - min(sizes) <= 1


def test_no_chunk_of_a_large_vocabulary_is_spent_on_the_weights_traffic() -> None:
    # A core that computes 170e9 and moves 17e9 bytes a second: (8 + 2 * 4) * 10 / (6 * tokens) of a chunk's time.
    assert all(16 * 10 / (6 * (one.stop - one.start)) < 0.06 for one in chunks_of(4096, 250_880, "cpu"))
    # What fp16 of a GPU adds to and reads is shorter than its product: 8 bytes against 2 * tokens operations a number.
    assert all(2 * (one.stop - one.start) >= 8 * 240 for one in chunks_of(4096, 250_880, "cuda"))
