"""Test which files a verification reads again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.transfer.backups.verify import Round, draw, share_of

FILES = [(f"checkpoints/global_step{step}", f"layer_{layer:02d}") for step in (10, 20, 30) for layer in range(7)]


@given(st.integers(1, 30), st.integers(0, 5))
def test_each_round_reads_every_file_once_and_each_time_as_many_as_asked(count: int, number: int) -> None:
    before = Round("/to", number)
    read: list[tuple[str, str]] = []
    while len(read) < len(FILES):
        files, before = draw(FILES, 0, count, before)
        assert len(files) == len(set(files)) == min(count, len(FILES))
        read += files
    assert set(read[: len(FILES)]) == set(FILES)


def test_rounds_have_orders_of_their_own_and_a_share_is_of_all() -> None:
    first, _ = draw(FILES, 0.1, 1, Round("/to"))
    assert len(first) == 3
    assert first != draw(FILES, 0.1, 1, Round("/to", 1))[0]
    assert draw(FILES, 1, 1, Round("/to"))[1] == Round("/to", 1)
    assert draw([], 1, 1, Round("/to"))[0] == []


@pytest.mark.parametrize(("text", "found"), [("5%", (0.05, 1)), ("100%", (1, 1)), ("20", (0, 20))])
def test_a_sample_is_a_number_of_files_or_a_share(text: str, found: tuple[float, int]) -> None:
    assert share_of(text) == found


@pytest.mark.parametrize("text", ["", "0", "-1", "0%", "101%", "nan%", "many", "%"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!a}: ")):
        share_of(text)
