"""Test which files a verification reads again."""

from __future__ import annotations

import re
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.transfer.backups.verify import Sample, sample_of
from opsctl.transfer.object_store.types import ANYTHING

FILES = {f"layer_{number:03d}": ANYTHING for number in range(200)}


@given(st.integers(1, 100), st.integers(0, 10**6))
def test_in_as_many_days_every_file_is_read_once(days: int, first: int) -> None:
    read = [name for day in range(first, first + days) for name in Sample(days, day).of("checkpoints", FILES)]
    assert sorted(read) == sorted(FILES)


def test_a_new_file_moves_no_other_to_another_day() -> None:
    before = Sample(20, 7).of("checkpoints", FILES)
    after = Sample(20, 7).of("checkpoints", {"a new one": ANYTHING, **FILES})
    assert 0 < len(before) < 30 and before.keys() == after.keys() - {"a new one"}


@pytest.mark.parametrize(("text", "days"), [("5%", 20), ("100%", 1), ("2%", 50)])
def test_a_sample_is_a_share(text: str, days: int) -> None:
    assert sample_of(text, date(2026, 3, 1)) == Sample(days, date(2026, 3, 1).toordinal())


@pytest.mark.parametrize("text", ["", "0", "20", "0%", "101%", "nan%", "many", "%"])
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!a}: ")):
        sample_of(text, date(2026, 3, 1))
