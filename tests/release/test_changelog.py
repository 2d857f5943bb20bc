"""The changelog is where a release's notes come from."""

from __future__ import annotations

import datetime

import pytest

from release.changelog import dated, notes
from release.refusal import Refused

TEXT = """\
# Changelog

## [0.2.0] - unreleased

### Added
* One thing.

## [0.1.0] - 2026-11-23
* The first.

## [0.0.1] - unreleased
"""
TODAY = datetime.date(2026, 12, 1)


def test_a_release_dates_its_own_section_and_no_other_word() -> None:
    assert dated(TEXT, "0.2.0", TODAY) == TEXT.replace("[0.2.0] - unreleased", "[0.2.0] - 2026-12-01")


def test_the_notes_are_what_its_section_says_up_to_the_next() -> None:
    assert notes(TEXT, "0.2.0") == "### Added\n* One thing."
    assert notes(TEXT, "0.1.0") == "* The first."


@pytest.mark.parametrize(
    ("version", "fact"),
    [("0.3.0", r"## \[0.3.0\] - unreleased"), ("0.1.0", "2026-11-23"), ("0.0.1", r"0\.0\.1")],
)
def test_a_section_that_is_missing_dated_or_empty_makes_no_release(version: str, fact: str) -> None:
    with pytest.raises(Refused, match=fact):
        dated(TEXT, version, TODAY)
