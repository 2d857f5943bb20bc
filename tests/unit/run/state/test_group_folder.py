"""Test whom a run's output folder is open to, with real Unix users."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import open_output, refuse_who_cannot_enter
from opsctl.run.state.revisions import newest
from opsctl.run.state.run_view import glance
from tests.facts import missing
from tests.tiny_run import write_run
from tests.users import as_user

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")


GROUP = f"ocf{os.getpid()}"


@pytest.fixture
def place(unix_user: Callable[..., str]) -> Iterator[tuple[Path, str]]:
    """A run file's folder that everybody may look into, and the account that it belongs to."""
    owner = unix_user("owner", groups_of=[GROUP])
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        os.chown(folder, pwd.getpwnam(owner).pw_uid, -1)
        yield Path(folder), owner


def test_closing_a_shared_folder_is_reported_once(place: tuple[Path, str]) -> None:
    folder, owner = place
    paths = RunPaths(folder / "output")

    def share_as_releases_before_did() -> None:
        paths.output.mkdir()
        paths.output.chmod(0o2775)

    as_user(owner, share_as_releases_before_did)
    (said,) = as_user(owner, lambda: open_output(paths, None))
    assert missing(said, paths.output, f"group {owner}", 'group = "NAME"', "[run]") == []
    assert stat.S_IMODE(paths.output.stat().st_mode) == 0o700
    assert as_user(owner, lambda: open_output(paths, None)) == ()


def test_a_folder_made_new_or_opened_to_a_group_needs_no_warning(place: tuple[Path, str]) -> None:
    folder, owner = place
    paths = RunPaths(folder / "output")
    assert as_user(owner, lambda: open_output(paths, None)) == ()
    assert as_user(owner, lambda: open_output(paths, GROUP)) == ()


def test_a_user_without_access_is_told_the_owner_or_the_group_to_join(
    place: tuple[Path, str], unix_user: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, owner = place
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    stranger = unix_user("stranger")
    path = write_run(folder)
    path.chmod(0o644)
    paths = load_run_file(path, {}).paths
    assert as_user(stranger, lambda: refuse_who_cannot_enter(paths)) is None  # nothing is there yet
    if paths.output.exists():
        paths.output.rmdir()
    as_user(owner, lambda: open_output(paths, None))
    for look in (lambda: glance(str(path)), lambda: newest(paths)):
        with pytest.raises(OpsctlError, match=f"{paths.output}.*only {owner} may"):
            as_user(stranger, look)
    as_user(owner, lambda: open_output(paths, GROUP))
    for look in (lambda: glance(str(path)), lambda: newest(paths)):
        with pytest.raises(OpsctlError, match=f"{paths.output}.*{stranger} .*group {GROUP}"):
            as_user(stranger, look)
    assert as_user(owner, lambda: refuse_who_cannot_enter(paths)) is None
