"""Ages as people say them."""

from __future__ import annotations

import pytest

from opsctl.monitoring.finding import rough


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (86399, "23 h"),
        (86400, "1 d"),
        (2 * 86400 + 4 * 3600, "2 d 4 h"),
        (9 * 86400 + 3599, "9 d"),
        (17 * 86400 + 5 * 3600, "17 d"),
    ],
)
def test_an_age_is_as_exact_as_matters(seconds: float, said: str) -> None:
    assert rough(seconds) == said
