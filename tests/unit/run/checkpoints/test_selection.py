"""The checkpoints that are sent, and their form: the same choice for a backup and for a sync to a hub."""

from __future__ import annotations

import pytest

from opsctl.run.checkpoints.backups import Every, What


@pytest.mark.parametrize(
    ("every", "iteration", "form"),
    [
        (Every(full=10, weights=3), 10, What.FULL),
        (Every(full=10, weights=3), 30, What.FULL),  # both divide it: a whole one has the weights too
        (Every(full=10, weights=3), 9, What.WEIGHTS),
        (Every(full=10, weights=3), 11, None),
        (Every(full=10), 9, None),
        (Every(weights=3), 9, What.WEIGHTS),
        (Every(), 10, None),
        (Every(full=1, weights=1), 0, None),
    ],
)
def test_the_larger_interval_decides_the_form(every: Every, iteration: int, form: What | None) -> None:
    assert every.form(iteration) is form
