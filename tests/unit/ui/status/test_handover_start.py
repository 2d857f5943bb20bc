"""Since when a handover tells."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from opsctl.core.errors import UsageError
from opsctl.monitoring.on_call import last_asked, remember_asked, since_of
from tests.unit.monitoring.jobs import NOW

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90min", 1.5 * HOUR),
        ("90m", 1.5 * HOUR),
        ("12h", 12 * HOUR),
        ("3d", 72 * HOUR),
        ("1w", 168 * HOUR),
        ("1-12:00:00", 36 * HOUR),
        ("12:00:00", 12 * HOUR),
        ((NOW - HOUR).isoformat(), HOUR),
    ],
)
def test_a_length_or_a_time(text: str, ago: timedelta) -> None:
    assert since_of(text, NOW, None) == NOW - ago


@pytest.mark.parametrize(
    "text", ["", "yesterday", "12", "-3h", "2026-99-99", "9999999h", (NOW + HOUR).isoformat(), "1:2:3:4"]
)
def test_what_is_neither_or_still_to_come_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--since "):
        since_of(text, NOW, None)


@pytest.mark.parametrize(("last", "since"), [(NOW - HOUR, NOW - HOUR), (None, NOW - 12 * HOUR)])
def test_last_is_when_this_account_asked_before(last: datetime | None, since: datetime) -> None:
    assert since_of("last", NOW, last) == since


def test_a_clock_that_was_set_back_since_tells_more_and_loses_nothing() -> None:
    assert since_of("last", NOW, NOW + HOUR) == NOW - 12 * HOUR


def test_when_it_asked_is_remembered_for_each_run(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    assert last_asked(environment) == {}
    remember_asked({"/a": NOW}, environment)
    remember_asked({"/b": NOW + HOUR}, environment)
    assert last_asked(environment) == {"/a": NOW, "/b": NOW + HOUR}
    (tmp_path / "opsctl" / "on-call.json").write_text("not json")
    assert last_asked(environment) == {}
