"""State files and logs that several processes write."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pwd
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.core.files import state_files as files
from opsctl.core.files.trusted import Untrusted


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "state.json"
    files.write_state(target.parent, target, {"old": 1})
    before = target.read_bytes()
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            files.write_atomically(target.parent, target, "x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


class Thing(msgspec.Struct, frozen=True):
    """Something kept."""

    name: str
    size: int = 0


@pytest.mark.parametrize("name", ["folder", "missing/x.prom"])
def test_a_named_file_that_cannot_be_written_is_named_in_the_error_and_not_its_temporary_file(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match=r"Is a directory|No such file") as refused:
        files.replace_named_file(tmp_path / name, "text")
    assert refused.value.filename == str(tmp_path / name)
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_what_is_not_there_is_none_or_no_lines(tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    assert files.read_state(nothing.parent, nothing, Thing) is None
    assert files.read_whole(nothing.parent, nothing, Thing, "fix it") is None
    assert files.read_text(nothing.parent, nothing) is None
    assert files.read_lines(nothing.parent, nothing, Thing) == []


@given(st.builds(Thing, st.text() | st.just("caf\udce9"), st.integers()))
def test_what_was_written_comes_back(tmp_path_factory: pytest.TempPathFactory, thing: Thing) -> None:
    path = tmp_path_factory.mktemp("state") / "thing.json"
    files.write_state(path.parent, path, thing)
    assert files.read_state(path.parent, path, Thing) == files.read_whole(path.parent, path, Thing, "fix it") == thing
    files.append_state(path.parent, path.with_suffix(".jsonl"), thing)
    assert files.read_lines(path.parent, path.with_suffix(".jsonl"), Thing) == [thing]


def test_damage_is_passed_over_where_that_may_be_and_said_in_one_line_where_not(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    for damage, said in (('{"name": "a", "size": "big"}', r"Expected `int`.*"), ("{", r"Expecting.*")):
        path.write_text(damage)
        with pytest.raises(UsageError, match=f"cannot read {path}: {said}; fix it$") as stop:
            files.read_whole(path.parent, path, Thing, "fix it", UsageError)
        assert "\n" not in str(stop.value)
    assert files.read_state(path.parent, path, Thing) is None
    path.write_text('{"name": "a", "size": "big"}')
    assert files.read_state(path.parent, path, Thing) == Thing("a")


def test_a_file_that_is_much_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    path.write_text(" " * 100 + '{"name": "a"}')
    assert files.read_state(path.parent, path, Thing, largest_bytes=113) == Thing("a")
    assert files.read_state(path.parent, path, Thing, largest_bytes=112) is None
    with path.open("r+b") as file:
        file.truncate(files.LARGEST_BYTES + 1)
    with pytest.raises(OpsctlError, match=f"cannot read {path}: more than {files.LARGEST_BYTES} bytes; fix it"):
        files.read_whole(path.parent, path, Thing, "fix it")


def test_lines_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(Untrusted, match=str(tmp_path)):
        files.read_lines(tmp_path.parent, tmp_path, Thing)


def test_what_is_there_is_not_created_again(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    assert files.create_state(path.parent, path, Thing("first"))
    assert not files.create_state(path.parent, path, Thing("second"))
    assert files.read_state(path.parent, path, Thing) == Thing("first")
    assert [one.name for one in tmp_path.iterdir()] == ["thing.json"]


def test_a_file_is_durable_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int | str] = []
    fsync, rename = os.fsync, os.rename

    def synced(fd: int) -> None:
        done.append(os.fstat(fd).st_ino)
        fsync(fd)

    def renamed(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        done.append("rename")
        rename(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    files.write_atomically(tmp_path, tmp_path / "one", "text")
    assert done == [(tmp_path / "one").stat().st_ino, "rename", tmp_path.stat().st_ino]


def test_a_file_is_put_back_as_it_was_found(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    for before in (None, '{"name": "a"}'):
        if before is not None:
            path.write_text(before)
        found = files.read_text(path.parent, path)
        files.write_state(path.parent, path, Thing("new"))
        files.write_back(path.parent, path, found)
        assert files.read_text(path.parent, path) == before


def write_lines(path: Path, word: str) -> None:
    for _ in range(200):
        files.append_bytes(path.parent, path, (word * 50).encode() + b"\n")


def test_lines_of_several_writers_never_split_each_other(tmp_path: Path) -> None:
    log = tmp_path / "log"
    writers = [multiprocessing.get_context("fork").Process(target=write_lines, args=(log, word)) for word in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    lines = log.read_text().splitlines()
    assert sorted(set(lines)) == ["a" * 50, "b" * 50, "c" * 50]
    assert len(lines) == 600


def test_a_line_after_half_a_one_starts_afresh(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"whole\nhal")
    files.append_bytes(log.parent, log, b"next\n")
    assert log.read_text() == "whole\nhal\nnext\n"


def hold(path: Path, has_it: multiprocessing.synchronize.Event) -> None:
    fd = os.open(path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    has_it.set()
    time.sleep(60)


def test_a_writer_that_hangs_with_the_lock_does_not_stop_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n")
    context = multiprocessing.get_context("fork")
    has_it = context.Event()
    hanging = context.Process(target=hold, args=(log, has_it))
    hanging.start()
    try:
        assert has_it.wait(10)
        assert not files.append_bytes(log.parent, log, b"second\n", wait_s=0.2)
        assert log.read_text() == "first\nsecond\n"
        with (
            pytest.raises(OpsctlError, match="try it: first"),
            files.locked(log.parent, log, 0.2, "try it"),
        ):
            pass
    finally:
        hanging.kill()
        hanging.join(10)


def test_a_lock_file_left_behind_blocks_nobody(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("someone@elsewhere pid 1\n")
    with files.locked(lock.parent, lock, 0.2, "try it"):
        assert str(os.getpid()) in lock.read_text()


def test_a_lock_names_the_real_account_whatever_the_environment_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "somebody-else")
    with files.locked(tmp_path, tmp_path / "lock", 1, "test"):
        assert (tmp_path / "lock").read_text().startswith(f"{pwd.getpwuid(os.geteuid()).pw_name}@")
