"""Cancelling where nothing can be put on record."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control.cancel import cancel
from opsctl.run.config.paths import RunPaths
from opsctl.slurm.cluster import Cluster


def test_on_a_full_disk_it_says_that_nothing_was_cancelled_and_what_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    paths = RunPaths(tmp_path)
    paths.state.mkdir()
    monkeypatch.setattr("opsctl.jobs.control.cancel.locked", full)
    with pytest.raises(OpsctlError, match=f"{tmp_path}.*scancel"):
        cancel(paths, "tiny", Cluster())
