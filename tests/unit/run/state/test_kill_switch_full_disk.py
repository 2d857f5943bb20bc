"""The kill switch on real file systems that are full to the last byte, or to the last file."""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.core.files import reserve, state_files
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import kill_switch
from tests.users import as_user

ME = pwd.getpwuid(os.geteuid()).pw_name


@contextmanager
def tmpfs(folder: Path) -> Iterator[Path]:
    """A file system in memory, of 128 KiB and 64 files."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k,nr_inodes=64,mode=755", "none", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@contextmanager
def ext4(folder: Path) -> Iterator[Path]:
    """One of 2 MiB in a file."""
    image = folder.with_name("image")
    with image.open("wb") as file:
        file.truncate(2 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-N", "64", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True).returncode:
        pytest.skip("no loop device here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


@pytest.fixture(params=[tmpfs, ext4], ids=["tmpfs", "ext4"])
def armed(request: pytest.FixtureRequest) -> Iterator[RunPaths]:
    """A run that has been armed, in a small file system of its own that every Unix user can reach."""
    if os.getuid():
        pytest.skip("mounting needs root")
    with tempfile.TemporaryDirectory(dir="/tmp") as reachable:
        Path(reachable).chmod(0o755)
        folder = Path(reachable) / "small"
        folder.mkdir()
        with request.param(folder) as mounted:
            paths = RunPaths(mounted / "out")
            kill_switch.arm(paths)
            yield paths


def fill_with_data(folder: Path) -> None:
    """Write to one file until not another byte goes in."""
    with (folder / "data").open("wb", buffering=0) as file:
        for size in (4096, 1):
            while _goes(lambda: file.write(b"x" * size)):  # noqa: B023 - called at once
                pass


def fill_with_files(folder: Path) -> None:
    """Make empty files until not another one goes in."""
    number = 0
    while _goes((folder / f"file{number}").touch):
        number += 1


def _goes(do: Callable[[], object]) -> bool:
    try:
        do()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def test_with_no_byte_left_it_triggers_and_records_who_and_why(armed: RunPaths) -> None:
    fill_with_data(armed.output)
    change = kill_switch.trigger(armed, "disk full")
    assert change.changed and (change.state.by, change.state.why) == (ME, "disk full")


def test_with_no_file_left_it_triggers_and_records_who_and_why(armed: RunPaths) -> None:
    fill_with_data(armed.output)
    fill_with_files(armed.output)
    change = kill_switch.trigger(armed, "disk full")
    assert change.changed and (change.state.by, change.state.why) == (ME, "disk full")
    assert not kill_switch.trigger(armed, "again").changed


def test_after_deactivating_on_a_full_disk_it_triggers_again(armed: RunPaths) -> None:
    fill_with_data(armed.output)
    fill_with_files(armed.output)
    for number in range(3):
        assert kill_switch.trigger(armed, f"reason {number}").state.why == f"reason {number}"
        assert kill_switch.deactivate(armed).changed


def test_of_several_at_once_on_a_full_disk_one_triggers(armed: RunPaths) -> None:
    fill_with_data(armed.output)
    fill_with_files(armed.output)
    read_end, write_end = os.pipe()
    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            os.write(write_end, b"%d" % kill_switch.trigger(armed, f"reason {number}").changed)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert sorted(os.read(read_end, 10)) == sorted(b"0001")
    os.close(read_end)
    os.close(write_end)
    assert kill_switch.state(armed).why.startswith("reason ")


def test_a_member_triggers_with_the_owners_reserve(armed: RunPaths, unix_user: Callable[..., str]) -> None:
    group = f"ockd{os.getpid()}"
    member = unix_user("ben", groups_of=[group])
    kill_switch.arm(armed, group)
    fill_with_data(armed.output)
    fill_with_files(armed.output)
    state = as_user(member, lambda: kill_switch.trigger(armed, "not mine")).state
    assert (state.by, state.why) == (member, "not mine")


def test_a_link_in_place_of_the_reserve_is_not_written_to(armed: RunPaths, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("mine")
    armed.kill_switch_reserve.unlink()
    armed.kill_switch_reserve.symlink_to(thesis)
    fill_with_files(armed.output)
    with pytest.raises(OpsctlError, match="reserve"):
        kill_switch.trigger(armed)
    assert thesis.read_text() == "mine"


def test_without_a_reserve_a_full_disk_still_takes_an_empty_switch(armed: RunPaths) -> None:
    armed.kill_switch_reserve.unlink()
    fill_with_data(armed.output)
    change = kill_switch.trigger(armed, "disk full")
    assert change.changed and (change.state.by, change.state.why) == (ME, "")


def test_an_error_names_the_failed_steps_if_nothing_could_be_written(armed: RunPaths) -> None:
    armed.kill_switch_reserve.unlink()
    fill_with_files(armed.output)
    with pytest.raises(OpsctlError, match=r"kill-switch: .*reserve.*: No such"):
        kill_switch.trigger(armed)
    assert not kill_switch.state(armed).is_triggered


def test_with_no_quota_left_the_reserve_becomes_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the refusal: kernels without quotas cannot give it. The rest is real."""
    paths = RunPaths(tmp_path / "out")
    kill_switch.arm(paths)

    def refuse(_folder: int, path: Path, _mode: int | None = None) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))

    monkeypatch.setattr(state_files, "create_file", refuse)
    assert kill_switch.trigger(paths, "over quota").state.why == "over quota"


def test_a_reserve_that_cannot_be_overwritten_triggers_without_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for a file system that copies what is written over, and has no room for that."""
    paths = RunPaths(tmp_path / "out")
    kill_switch.arm(paths)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(state_files, "create_file", refuse)
    monkeypatch.setattr(reserve, "write_all", refuse)
    story = kill_switch.trigger(paths, "a reason").state
    assert story.why not in ("", "a reason")
