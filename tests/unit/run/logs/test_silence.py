"""The silence after which a running training stands still, and after which it counts as hung. Pure."""

from __future__ import annotations

import pytest

from opsctl.run.logs.measurements import longest_silence_s


@pytest.mark.parametrize(
    ("iteration_s", "given_s", "pauses_s", "is_starting", "log_interval", "limit_s"),
    [
        (1.0, None, 0.0, False, 1, 600.0),  # ten minutes at least
        (100.0, None, 0.0, False, 1, 1000.0),  # ten iterations
        (100.0, None, 50.0, False, 1, 1050.0),  # plus an evaluation and a save
        (100.0, None, 0.0, False, 100, 30_000.0),  # three lines of a hundred iterations each
        (100.0, 20.0, 50.0, False, 100, 20.0),  # the run file's value
        (1.0, 20.0, 0.0, True, 1, 2400.0),  # which does not apply to a start
        (1.0, 9000.0, 0.0, True, 1, 10_800.0),
    ],
)
def test_how_long_a_training_may_log_nothing(
    iteration_s: float, given_s: float | None, pauses_s: float, is_starting: bool, log_interval: int, limit_s: float
) -> None:
    assert longest_silence_s(iteration_s, given_s, pauses_s, is_starting, log_interval) == limit_s
