"""The checkpoints of a range of iterations."""

from __future__ import annotations

import pytest

from trainer.convert.hf.export import steps_range


def test_a_range_has_both_its_ends() -> None:
    assert list(steps_range("1000:9000:4000")) == [1000, 5000, 9000]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("9000:1000:1000", "9000 comes after 1000: give 1000:9000:1000"),
        ("1000:9000:0", "EVERY must be at least 1"),
        ("1000:9000", "give FIRST:LAST:EVERY"),
        ("1000:9000:-1000", "give FIRST:LAST:EVERY"),
    ],
)
def test_what_is_no_range_is_refused_with_what_to_give(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        steps_range(text)
