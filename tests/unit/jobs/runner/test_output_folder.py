"""An output folder that is renamed while a job writes into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.jobs.runner.own_lease import LeaseHeartbeat
from opsctl.jobs.runner.task import FollowedPaths
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.lease import OwnLease, look, take


@pytest.fixture
def paths(tmp_path: Path) -> FollowedPaths:
    (tmp_path / "output").mkdir(mode=0o750)
    return FollowedPaths(tmp_path / "output")


def test_a_folder_that_stays_is_called_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "given").symlink_to("real")
    paths = FollowedPaths(tmp_path / "given")
    paths.look()
    assert paths.output == tmp_path / "given" and paths.lease == RunPaths(tmp_path / "given").lease


def test_a_folder_that_is_moved_is_followed_also_when_another_takes_its_place(paths: FollowedPaths) -> None:
    before = paths.output
    after = before.rename(before.with_name("moved"))
    assert paths.output == before, "two places that were asked for together go together"
    paths.look()
    assert paths.output == after and paths.main_log.is_relative_to(after)
    before.mkdir()
    paths.look()
    assert paths.output == after
    before.rmdir()
    after.rename(before)
    paths.look()
    assert paths.output == before


def test_the_heart_beats_on_in_a_folder_that_was_moved(paths: FollowedPaths) -> None:
    own = take(paths, "a", 7, "ann", lambda _: None)
    assert isinstance(own, OwnLease)
    after = paths.output.rename(paths.output.with_name("moved"))
    with pytest.raises(OSError, match="No such file"):
        own.beat()
    paths.look()
    assert own.beat() is None and look(RunPaths(after)).holder == own.holder
    assert not LeaseHeartbeat(own).lost
