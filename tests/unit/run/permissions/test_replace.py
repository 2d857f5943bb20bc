from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from opsctl.run.permissions import replace
from opsctl.run.permissions.apply import Opening
from opsctl.run.permissions.report import PrintedPerms, looked
from tests.unit.run.permissions.test_apply import GROUP, Shared, members, shared
from tests.users import as_user
from trainer.formats.file_lock import lock_within

__all__ = ["members", "shared"]
OLD = 1_600_000_000


@pytest.fixture
def closed(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of ben's that the group cannot write, in a folder where it may make files."""
    monkeypatch.setattr(replace, "STILL_FOR_S", 0.0)
    path = shared.folder / "weights 1.bin"

    def write() -> None:
        path.write_bytes(os.urandom(3_000_000))
        path.chmod(0o644)
        os.utime(path, (OLD, OLD))

    as_user(shared.ben, write)
    return path


def replaced(shared: Shared, only_counts: bool = False) -> PrintedPerms:
    return shared.looked(shared.ann, mend=True, replaces=True, only_counts=only_counts)


def why(found: PrintedPerms) -> str:
    """Return the reasons for which files were not replaced."""
    return "; ".join(trouble.why_not for owner in found.owners for trouble in owner.troubles)


def test_a_copy_takes_the_place_with_the_same_bytes_and_times(shared: Shared, closed: Path) -> None:
    before, content = closed.stat(), closed.read_bytes()
    replaced(shared)
    after = closed.stat()
    assert closed.read_bytes() == content and after.st_mtime_ns == before.st_mtime_ns
    assert (after.st_uid != before.st_uid, after.st_gid, stat.S_IMODE(after.st_mode)) == (True, shared.gid, 0o664)
    assert not list(shared.folder.rglob(".opsctl-perms*"))


def test_where_the_folder_does_not_let_one_nothing_is_tried_twice_or_left(shared: Shared, closed: Path) -> None:
    found = replaced(shared)
    (own,) = [owner for owner in found.owners if owner.owner == shared.ben]
    assert own.wrong and "Permission denied" in why(found)
    assert (shared.folder / f"of {shared.ben}" / "a.bin").stat().st_uid != closed.stat().st_uid
    assert not list(shared.folder.rglob(".opsctl-perms*"))


def test_a_dry_run_replaces_nothing(shared: Shared, closed: Path) -> None:
    before = closed.stat()
    found = replaced(shared, only_counts=True)
    assert os.path.samestat(before, closed.stat())
    assert any(trouble.state == "replaced" for owner in found.owners for trouble in owner.troubles)


def test_what_a_run_writes_or_goes_by_is_never_replaced(shared: Shared, closed: Path) -> None:
    names = (".opsctl/x", "logs/main_log.txt", "tensorboard/e", ".tmp-global_step3/x", "kill-switch", "c/latest")
    ordinary, before = closed.stat(), {}
    for path in (shared.folder / name for name in names):
        if not path.parent.exists():
            path.parent.mkdir()
            os.chown(path.parent, -1, shared.gid)
            path.parent.chmod(0o2770)
        shutil.copy2(closed, path)
        shutil.chown(path, shared.ben)
        before[path] = path.stat()
    found = replaced(shared)
    assert not os.path.samestat(ordinary, closed.stat())
    assert all(os.path.samestat(seen, path.stat()) for path, seen in before.items())
    for pattern in (".opsctl", "logs", "tensorboard", ".tmp-*", "kill-switch", "latest*"):
        assert pattern in why(found)


def test_what_was_changed_lately_has_a_second_name_or_a_lock_stays(
    shared: Shared, closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = closed.stat()
    (shared.folder / "second").hardlink_to(closed)
    assert "hard link" in why(replaced(shared))
    (shared.folder / "second").unlink()
    with closed.open("r+") as file:
        assert lock_within(file.fileno(), 0)
        assert "locked" in why(replaced(shared))
    monkeypatch.setattr(replace, "STILL_FOR_S", 3600.0)
    assert "hour" in why(replaced(shared))
    assert os.path.samestat(before, closed.stat())


def test_a_file_that_grows_while_it_is_copied_stays_and_so_does_one_whose_copy_is_another(
    shared: Shared, closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, copy = closed.stat(), replace._copy

    def grow(source: int, target: int) -> None:
        copy(source, target)
        closed.touch()

    os.chown(closed, -1, 0)
    closed.chmod(0o646)  # so that ann's process may play whoever writes it
    monkeypatch.setattr(replace, "_copy", grow)
    assert "changed" in why(replaced(shared))
    monkeypatch.setattr(replace, "_copy", copy)
    monkeypatch.setattr(replace, "write_all", lambda target, piece: os.write(target, piece[:-1] + b"!"))
    assert "copy" in why(replaced(shared))
    assert os.path.samestat(before, closed.stat()) and not list(shared.folder.rglob(".opsctl-perms*"))


def test_a_disk_that_is_full_leaves_the_file_and_no_copy(
    shared: Shared, closed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(target: int, piece: bytes) -> None:
        os.write(target, piece[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(replace, "write_all", full)
    before = closed.stat()
    assert "No space left on device" in why(replaced(shared))
    assert os.path.samestat(before, closed.stat()) and not list(shared.folder.rglob(".opsctl-perms*"))


def test_what_a_killed_process_left_is_cleared_away_by_the_next(shared: Shared, closed: Path) -> None:
    left = shared.folder / ".opsctl-perms.0123"
    as_user(shared.ann, left.touch)
    replaced(shared)
    assert not left.exists()
    assert subprocess.run(["find", str(shared.folder), "-name", ".opsctl*"], capture_output=True).stdout == b""


def test_what_a_run_writes_is_not_replaced_either_where_only_that_folder_is_named(shared: Shared, closed: Path) -> None:
    logs = shared.folder / "run" / "logs"

    def make() -> None:
        (shared.folder / "run" / ".opsctl").mkdir(parents=True)
        logs.mkdir()
        for folder in (logs, logs.parent):
            os.chown(folder, -1, shared.gid)
            folder.chmod(0o2770)

    as_user(shared.ben, make)
    log = logs / "main_log.txt"
    as_user(shared.ben, lambda: closed.rename(log))
    before = log.stat()
    opening = Opening(shared.gid, mend=True, replaces=True)
    found = as_user(shared.ann, lambda: looked(logs, GROUP, opening, lambda _: None))
    assert (log.stat().st_uid, log.stat().st_ino) == (before.st_uid, before.st_ino)
    assert "logs" in why(found)
