"""Test what people have cancelled, and when a run rests for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chains import (
    REFILL,
    REQUEST,
    REVISE,
    SUBMIT,
    Cancel,
    Chain,
    append_chain,
    read_cancels,
    record_cancel,
    resting,
)


def chain(number: int, how: str) -> Chain:
    return Chain(chain=number, submitted_at=now(), user="ann", array="1-3%1", how=how)


@pytest.mark.parametrize(
    ("later", "rests"),
    [((), True), ((REFILL,), True), ((SUBMIT,), False), (("",), False), ((REVISE,), False), ((REQUEST, REFILL), False)],
)
def test_a_run_rests_from_a_cancel_until_somebody_submits(later: tuple[str, ...], rests: bool) -> None:
    chains = [chain(1, SUBMIT), *(chain(2, how) for how in later)]
    cancel = Cancel(at=now(), by="ann", chains=1)
    assert resting(chains, [Cancel(at=now(), by="ben"), cancel]) == (cancel if rests else None)


def test_which_came_first_no_clock_says(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.state.mkdir()
    append_chain(paths, chain(1, SUBMIT))
    record_cancel(paths, ["1_[1-3%1]"], queued_only=False)
    (cancel,) = read_cancels(paths)
    assert (cancel.jobs, cancel.chains, cancel.queued_only) == (("1_[1-3%1]",), 1, False)
    earlier = Chain(chain=2, submitted_at=cancel.at.replace(year=2000), user="ann", array="1", how=SUBMIT)
    assert resting([chain(1, SUBMIT), earlier], [cancel]) is None
    assert resting([chain(1, SUBMIT)], [cancel]) == cancel


def test_a_request_is_on_record_as_the_askers(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.state.mkdir()
    record_cancel(paths, ["7_[2-3%1]"], queued_only=True, by="ben")
    (cancel,) = read_cancels(paths)
    assert (cancel.by, cancel.queued_only) == ("ben", True)
