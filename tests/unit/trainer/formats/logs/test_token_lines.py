"""Lines about a sample's tokens."""

from __future__ import annotations

import numpy
import xxhash

from trainer.formats.logs.training_line import tokens_line


def test_both_ends_are_shown_and_the_digest_is_of_all() -> None:
    tokens = numpy.arange(100, 117)
    digest = xxhash.xxh64(b"".join(int(one).to_bytes(8, "little") for one in tokens)).hexdigest()
    assert tokens_line(2, 8, tokens) == (
        f"tokens of iteration 2, sample 8: 100 101 102 ... 114 115 116 (17 tokens, xxh64 {digest})"
    )
    changed = tokens.copy()
    changed[8] += 1
    assert tokens_line(2, 8, changed) != tokens_line(2, 8, tokens)


def test_a_short_sample_is_shown_whole() -> None:
    assert tokens_line(1, 0, numpy.arange(6)).startswith("tokens of iteration 1, sample 0: 0 1 2 3 4 5 (6 tokens, ")
