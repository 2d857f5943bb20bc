"""What a submit says where it may not write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import explained_disk_errors
from tests.users import as_user


@pytest.mark.skipif(os.getuid() != 0, reason="being somebody else needs root")
@pytest.mark.parametrize(
    ("mode", "told"),
    [(0o755, r"root .*`group`.*\[run\]"), (0o2775, r"{user} .*group root")],
)
def test_somebody_who_may_not_write_is_told_why_and_not_sent_round_in_a_circle(
    unix_user: Callable[..., str], mode: int, told: str
) -> None:
    user = unix_user("eve")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        paths = RunPaths(Path(folder))
        paths.output.chmod(mode)

        def write() -> None:
            with explained_disk_errors(paths):
                (paths.output / "run-id").touch()

        with pytest.raises(OpsctlError, match=told.format(user=user)):
            as_user(user, write)
