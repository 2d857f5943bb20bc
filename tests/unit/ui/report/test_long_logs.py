"""Logs with more lines than are kept in memory: thinned rows keep the extremes, the spikes and the counts."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest

from opsctl.run.logs.lines import iteration_losses
from opsctl.ui.report import curves
from opsctl.ui.report.curves import SPIKE, Course
from opsctl.ui.report.html_page import Known, page_run
from opsctl.ui.report.log_source import log_named
from tests.unit.ui.report.made import log_text


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    monkeypatch.setattr(curves, "THINNED_AT_ONCE", 512)
    path = tmp_path / "log.txt"
    path.write_text(log_text(6000, restart_every=1400))
    log = log_named(path)
    log.look()
    log.finish()
    return log.course


def test_thinning_keeps_the_number_of_lines_and_trained_iterations(course: Course) -> None:
    assert len(course) < 2500 and course.lines == 6000
    assert sum(course.column("trained")) == 6000
    assert all(earlier < later for earlier, later in pairwise(course.column("iteration")))
    assert [one.iterations for one in course.superseded] == [400] * 5


def test_thinning_keeps_the_extremes_and_the_newest_lines(course: Course, tmp_path: Path) -> None:
    losses = dict(iteration_losses((tmp_path / "log.txt").read_text()))
    shown = course.column("loss")
    assert (min(shown), max(shown)) == (min(losses.values()), max(losses.values()))
    newest = [(int(at), loss) for at, loss in zip(course.column("iteration"), shown, strict=True)][-512:]
    assert newest == [(at, losses[at]) for at in range(6000 - 511, 6001)]


def test_a_spike_is_found_though_its_rows_are_thinned(course: Course) -> None:
    assert course.thinned > 0 and math.isfinite(course.column("at_s")[0])
    spikes = [mark for mark in page_run("a", "a", course, Known()).marks if mark.kind == SPIKE]
    assert [mark.iteration for mark in spikes] == [3600]
