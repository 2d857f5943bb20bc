"""Test what may lie in a run's folder, and what is refused, with accounts that this machine has."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.core.files.state_files import append_bytes, locked, make_folder, read_text, room_kept, write_atomically
from opsctl.core.files.trusted import Untrusted, at_work_in, open_file, present_name, who_else_can_write
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import open_output
from tests.facts import missing

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="acting as another user needs root")
#: Accounts of every Debian: games and man are each in a group of the same name.
OWNER, MEMBER, STRANGER, GROUP = "games", "man", "nobody", "man"


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that every account can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextlib.contextmanager
def being(name: str) -> Iterator[None]:
    """Be that account for a while, in no group but its own and, for the owner, the run's."""
    account, groups, umask = pwd.getpwnam(name), os.getgroups(), os.umask(0o022)
    os.setgroups([grp.getgrnam(GROUP).gr_gid] if name == OWNER else [])
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)
        os.umask(umask)


@pytest.fixture
def shared(root: Path) -> Path:
    """A run's folder of OWNER's, open to GROUP."""
    folder = root / "run"
    root.chmod(0o1777)
    with being(OWNER):
        open_output(RunPaths(folder), GROUP)
        make_folder(folder, folder / "state")
    return folder


def in_its_place(path: Path) -> dict[str, Callable[[], object]]:
    """Ways to put something else where a file is expected."""
    (path.parent / "elsewhere").write_text("thesis\n")
    return {
        "a link": lambda: path.symlink_to(path.parent / "elsewhere"),
        "a dangling link": lambda: path.symlink_to("nowhere"),
        "a FIFO": lambda: os.mkfifo(path),
        "a folder": path.mkdir,
        "a second name": lambda: os.link(path.parent / "elsewhere", path),
        "a socket": lambda: socket.socket(socket.AF_UNIX).bind(str(path)),
        "a device": lambda: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5)),
    }


@pytest.mark.parametrize(
    "what", ["a link", "a dangling link", "a FIFO", "a folder", "a second name", "a socket", "a device"]
)
def test_what_is_no_plain_file_is_neither_read_nor_appended_to_nor_locked(root: Path, what: str) -> None:
    path = root / "file"
    if what == "a device" and os.getuid():
        pytest.skip("making a device needs root")
    in_its_place(path)[what]()
    attempts: tuple[Callable[[], object], ...] = (
        lambda: read_text(root, path),
        lambda: append_bytes(root, path, b"command; #\n"),
        lambda: contextlib.ExitStack().enter_context(locked(root, path, 0.1, "try it")),
    )
    for attempt in attempts:
        with pytest.raises(Untrusted) as refused:
            attempt()
        assert refused.value.filename == str(path) and "\n" not in str(refused.value.strerror)
    assert (root / "elsewhere").read_text() == "thesis\n"
    assert stat.S_IMODE((root / "elsewhere").stat().st_mode) & 0o022 == 0


def test_a_link_below_the_root_is_not_followed_and_one_above_is(root: Path) -> None:
    (root / "run" / "real").mkdir(parents=True)
    (root / "run" / "real" / "file").write_text("x")
    (root / "run" / "linked").symlink_to("real")
    (root / "here").symlink_to("run")
    assert read_text(root / "here", root / "here" / "real" / "file") == "x"
    with pytest.raises(Untrusted, match="linked"):
        read_text(root / "run", root / "run" / "linked" / "file")
    with pytest.raises(Untrusted):
        make_folder(root / "run", root / "run" / "linked" / "new")
    assert not (root / "run" / "real" / "new").exists()


def test_a_file_in_a_world_writable_folder_is_not_trusted(root: Path) -> None:
    (root / "run" / "state").mkdir(parents=True)
    path = root / "run" / "state" / "file"
    path.write_text("x")
    for folder in (path, path.parent, root / "run", root):
        before = stat.S_IMODE(folder.stat().st_mode)
        folder.chmod(before | 0o002)
        with pytest.raises(Untrusted) as refused:
            read_text(root / "run", path)
        assert refused.value.filename == str(folder)
        folder.chmod(before)
    root.chmod(0o1777)  # as /tmp: no one can swap what is another's there
    assert read_text(root / "run", path) == "x"
    with pytest.raises(Untrusted) as refused:  # but nothing of ours is kept there itself, and no one closes /tmp
        read_text(root, root / "file")
    assert "chmod" not in str(refused.value) and refused.value.filename == str(root)


def test_what_is_replaced_is_replaced_and_never_written_through(root: Path) -> None:
    (root / "elsewhere").write_text("thesis\n")
    (root / "run").mkdir()
    path = root / "run" / "file"
    path.symlink_to(root / "elsewhere")
    write_atomically(root / "run", path, "new")
    assert not path.is_symlink() and path.read_text() == "new"
    assert (root / "elsewhere").read_text() == "thesis\n"
    with room_kept(root / "run", root / "run", 100):
        assert sum(file.stat().st_size for file in (root / "run").glob(".room-*")) == 100
    assert sorted(file.name for file in (root / "run").iterdir()) == ["file"]


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize(("mode", "folder", "file"), [(0o700, 0o700, 0o600), (0o2770, 0o2770, 0o660)])
def test_what_is_made_is_as_open_as_the_folder_whatever_the_umask(
    root: Path, mode: int, folder: int, file: int, umask: int
) -> None:
    run = root / "run"
    run.mkdir()
    run.chmod(mode)
    before = os.umask(umask)
    try:
        make_folder(run, run / "a" / "b")
        write_atomically(run, run / "a" / "b" / "written", "x")
        append_bytes(run, run / "a" / "b" / "appended", b"x\n")
        with locked(run, run / "a" / "b" / "lock", 1, "try it"):
            pass
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (run / "a", run / "a" / "b")} == {folder}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (run / "a" / "b").iterdir()} == {file}


@needs_root
def test_files_of_the_owner_and_of_members_are_believed_and_a_strangers_are_not(shared: Path) -> None:
    path = shared / "state" / "file"
    for writer in (OWNER, MEMBER):
        with being(writer):
            write_atomically(shared, path, writer)
        for reader in (OWNER, MEMBER):
            with being(reader):
                assert read_text(shared, path) == writer
        assert read_text(shared, path) == writer  # root
    os.chown(path, pwd.getpwnam(STRANGER).pw_uid, -1)
    with being(OWNER), pytest.raises(Untrusted, match=f"belongs to {STRANGER}"):
        read_text(shared, path)
    with being(STRANGER), pytest.raises(PermissionError):
        read_text(shared, path)


@needs_root
def test_without_a_group_nobody_else_gets_in_and_a_members_file_is_not_believed(root: Path) -> None:
    root.chmod(0o1777)
    folder = root / "run"
    with being(MEMBER):
        open_output(RunPaths(folder), None)
        write_atomically(folder, folder / "file", "mine")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "file").stat().st_mode) == 0o600
    (folder / "file").chmod(0o644)
    os.chown(folder / "file", pwd.getpwnam(OWNER).pw_uid, -1)
    with being(MEMBER), pytest.raises(Untrusted, match=f"belongs to {OWNER}"):
        read_text(folder, folder / "file")


@needs_root
def test_naming_a_group_opens_what_was_there_and_taking_it_away_closes_it(root: Path) -> None:
    root.chmod(0o1777)
    folder, gid = root / "run", grp.getgrnam(GROUP).gr_gid
    (root / "thesis").write_text("private")
    (root / "thesis").chmod(0o600)
    with being(OWNER):
        open_output(RunPaths(folder), None)
        make_folder(folder, folder / "state")
        append_bytes(folder, folder / "state" / "file", b"x\n")
        (folder / "out").symlink_to(root / "thesis")
        open_output(RunPaths(folder), GROUP)
    with being(MEMBER):
        append_bytes(folder, folder / "state" / "file", b"y\n")
    assert {path.stat().st_gid for path in (folder, folder / "state", folder / "state" / "file")} == {gid}
    assert stat.S_IMODE((root / "thesis").stat().st_mode) == 0o600
    with being(OWNER):
        open_output(RunPaths(folder), None)
    with being(MEMBER), pytest.raises(PermissionError):
        read_text(folder, folder / "state" / "file")


@needs_root
def test_a_stranger_can_neither_open_the_lock_nor_hold_it(shared: Path) -> None:
    with being(MEMBER), locked(shared, shared / "state" / "lock", 1, "try it"):
        pass
    with being(STRANGER), pytest.raises(PermissionError):
        os.close(os.open(shared / "state" / "lock", os.O_RDONLY))
    shared.chmod(0o2775)  # as an older release made it
    (shared / "state").chmod(0o2775)
    with being(OWNER), locked(shared, shared / "state" / "lock", 1, "try it"):
        pass
    with being(STRANGER), pytest.raises(PermissionError):
        os.close(os.open(shared / "state" / "lock", os.O_RDONLY))


def test_a_program_that_another_user_can_replace_is_not_executed(root: Path) -> None:
    program = root / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert who_else_can_write(program) is None
    (root / "bin").chmod(0o757)
    assert str(root / "bin") in str(who_else_can_write(program))
    (root / "bin").chmod(0o775)
    if not os.getuid():
        os.chown(root / "bin", -1, grp.getgrnam("users").gr_gid)
        assert str(root / "bin") in str(who_else_can_write(program))
        os.chown(root / "bin", -1, 0)
        assert who_else_can_write(program) is None  # no one but root is in root's group
        os.chown(root / "bin", pwd.getpwnam(STRANGER).pw_uid, -1)
        assert missing(str(who_else_can_write(program)), root / "bin", STRANGER) == []


def test_a_link_is_checked_with_its_folder(root: Path) -> None:
    (root / "bin").mkdir()
    (root / "bin" / "squeue").touch()
    (root / "open").mkdir()
    (root / "open" / "latest").symlink_to("../bin")
    (root / "link").symlink_to("open/latest/squeue")
    assert who_else_can_write(root / "link") is None
    (root / "open").chmod(0o777)
    assert str(root / "open") in str(who_else_can_write(root / "link"))
    assert who_else_can_write(root / "bin" / "squeue") is None
    (root / "open").chmod(0o1777)  # who may write there renames nothing of others'
    assert who_else_can_write(root / "link") is None
    if not os.getuid():
        os.chown(root / "open" / "latest", pwd.getpwnam(STRANGER).pw_uid, -1, follow_symlinks=False)
        assert missing(str(who_else_can_write(root / "link")), root / "open" / "latest", STRANGER) == []


def test_a_file_that_is_made_while_it_is_looked_for_is_opened(root: Path) -> None:
    for _ in range(2):
        os.close(open_file(root, root / "file", os.O_RDWR | os.O_CREAT))


@pytest.mark.parametrize("name", ["../secret", "sub/../../secret", "/etc/hostname", "sub/.."])
def test_a_name_that_leads_out_of_the_folder_is_refused(root: Path, name: str) -> None:
    (root / "run/sub").mkdir(parents=True)
    (root / "secret").write_text("x")
    with pytest.raises(OSError, match=r"not in|is a folder"):
        open_file(root / "run", root / "run" / name)


def test_a_folder_at_work_is_followed_to_where_it_is_moved_and_never_made_anew(root: Path) -> None:
    root = root / "run"
    path = root / "state" / "log"
    path.parent.mkdir(parents=True)
    with at_work_in(root):
        append_bytes(root, path, b"before\n")
        moved = root.rename(root.with_name("moved"))
        append_bytes(root, path, b"after\n")
        assert (present_name(root), root.exists()) == (moved, False)
        root.mkdir()  # another one in its place is not it
        append_bytes(root, path, b"beside\n")
        assert list(root.iterdir()) == []
    assert (moved / "state" / "log").read_text() == "before\nafter\nbeside\n"
    assert present_name(root) == root
