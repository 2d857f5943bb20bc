"""Copies on a node's own disk: made once, never read when they are not whole, and never a reason to stop."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from tests.facts import missing
from tests.unit.trainer.data.conftest import MakePair, options_for
from trainer.data import index_cache
from trainer.data.build import build_datasets
from trainer.data.index_cache import NodeCache, expanded
from trainer.formats.errors import DataError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "shared.idx"
    path.write_bytes(os.urandom(100_000))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "disk"


def copies(folder: Path) -> list[Path]:
    return sorted(folder.glob("opsctl-data-*/*.idx"))


def test_a_copy_is_made_once_and_has_its_sources_bytes(source: Path, folder: Path) -> None:
    copy = NodeCache(folder).local(source)
    assert copy.read_bytes() == source.read_bytes() and copy.is_relative_to(folder)
    before = copy.stat()
    assert NodeCache(folder).local(source) == copy
    assert (copy.stat().st_ino, copy.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert copy.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(one.name for one in copy.parent.iterdir()) == [copy.name, f"{copy.name}.json"]


def test_without_a_folder_files_are_read_where_they_are(source: Path) -> None:
    assert NodeCache(None).local(source) == source


def test_a_source_that_was_written_anew_is_another(source: Path, folder: Path) -> None:
    old = NodeCache(folder).local(source)
    source.write_bytes(os.urandom(100_000))
    os.utime(source, ns=(1, 1))
    new = NodeCache(folder).local(source)
    assert new != old and new.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("damage", ["cut short", "one bit", "no note", "half a note"])
def test_a_copy_that_is_not_whole_is_made_anew_before_anybody_reads_it(source: Path, folder: Path, damage: str) -> None:
    copy = NodeCache(folder).local(source)
    note = Path(f"{copy}.json")
    match damage:
        case "cut short":
            os.truncate(copy, 99_999)
        case "one bit":  # with its old time
            state, raw = copy.stat(), bytearray(copy.read_bytes())
            raw[50_000] ^= 1
            copy.write_bytes(raw)
            os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))
        case "no note":
            note.unlink()
            os.truncate(copy, 5)
        case "half a note":
            note.write_text(note.read_text()[:-9])
    assert NodeCache(folder).local(source).read_bytes() == source.read_bytes()


def _open(folder: str, source: str, started: Barrier) -> None:
    started.wait(20)
    copy = NodeCache(Path(folder)).local(Path(source))
    assert str(copy) != source and copy.read_bytes() == Path(source).read_bytes()


def test_ranks_that_start_at_once_read_one_copy(source: Path, folder: Path) -> None:
    source.write_bytes(os.urandom(2_000_000))
    context = multiprocessing.get_context("fork")
    started = context.Barrier(6)
    ranks = [context.Process(target=_open, args=(str(folder), str(source), started)) for _ in range(6)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(60)
    assert [rank.exitcode for rank in ranks] == [0] * 6
    (copy,) = copies(folder)
    assert len(list(copy.parent.iterdir())) == 2


@pytest.mark.parametrize("moment", ["while copying", "before the note"])
def test_who_is_killed_while_copying_leaves_nothing_that_is_read_and_stops_nobody(
    source: Path, folder: Path, moment: str
) -> None:
    script = f"""
import os, signal
from pathlib import Path
from trainer.data import index_cache
def die(*_): os.kill(os.getpid(), signal.SIGKILL)
if {moment!r} == "while copying":
    index_cache._PIECE = 1000
    write = index_cache._write_all
    def half(file, piece):
        write(file, piece)
        die()
    index_cache._write_all = half
else:
    index_cache.write_atomically = die
index_cache.NodeCache(Path({str(folder)!r})).local(Path({str(source)!r}))
"""
    died = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    assert NodeCache(folder).local(source).read_bytes() == source.read_bytes()
    (copy,) = copies(folder)
    assert len(list(copy.parent.iterdir())) == 2


def test_while_another_copies_for_too_long_the_file_itself_is_read(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_cache, "WAIT_S", 0.1)
    copy = NodeCache(folder).local(source)
    copy.unlink()
    with Path(f"{copy}.partial").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert NodeCache(folder).local(source) == source
    assert NodeCache(folder).local(source) == copy


def test_a_full_disk_is_said_once_and_everything_is_read_where_it_is(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_file: int, _piece: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(index_cache, "_write_all", full)
    said: list[str] = []
    node = NodeCache(folder, said.append)
    assert [node.local(source), node.local(source)] == [source, source]
    (line,) = said
    assert line.startswith("warning: ")
    assert not missing(line, str(folder), os.uname().nodename, "No space left on device", str(source))
    assert list(folder.glob("*/*")) == [], "what was begun is taken away"


@pytest.mark.parametrize("how", ["absent", "unreadable"])
def test_a_source_that_cannot_be_read_is_not_taken_for_a_disk_that_cannot_be_used(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    said: list[str] = []
    node = NodeCache(folder, said.append)
    bad = source.with_name("bad.idx")
    if how == "unreadable":
        bad.mkdir()  # reading a folder fails, for any user
    with pytest.raises(OSError, match=r"bad\.idx"):
        node.local(bad)
    assert said == [] and node.local(source) != source


def test_what_would_fill_the_disk_is_not_begun(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_cache, "SPARED_SHARE", 1.0)
    said: list[str] = []
    assert NodeCache(folder, said.append).local(source) == source
    assert not missing(said[0], str(folder), "0.1 MB")
    assert list(folder.glob("*/*")) == []


@pytest.mark.parametrize("found", ["open to others", "a link", "a file"])
def test_a_folder_that_others_could_have_made_is_not_used(source: Path, folder: Path, found: str) -> None:
    own = folder / f"opsctl-data-{os.getuid()}"
    folder.mkdir()
    match found:
        case "open to others":
            own.mkdir()
            own.chmod(0o777)
        case "a link":
            own.symlink_to(source.parent)
        case "a file":
            own.touch()
    said: list[str] = []
    assert NodeCache(folder, said.append).local(source) == source
    assert len(said) == 1 and not missing(said[0], own.name, "0700")


def test_copies_that_nobody_opened_for_long_are_taken_away_by_who_makes_another(source: Path, folder: Path) -> None:
    old = NodeCache(folder).local(source)
    used = source.with_name("used.idx")
    used.write_bytes(b"used")
    kept = NodeCache(folder).local(used)
    long_ago = time.time() - index_cache.UNUSED_S - 60
    for path in old.parent.iterdir():
        os.utime(path, (long_ago, long_ago))
    assert NodeCache(folder).local(used) == kept  # opening it is using it
    source.write_bytes(b"another")
    new = NodeCache(folder).local(source)
    assert {one.name for one in old.parent.glob("*.idx")} == {kept.name, new.name}


def test_the_nodes_own_environment_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH_OF_NODE", "/scratch/7")
    assert expanded("$SCRATCH_OF_NODE/data") == Path("/scratch/7/data")
    monkeypatch.delenv("SCRATCH_OF_NODE")
    with pytest.raises(DataError, match=r"--data-node-cache-path \$SCRATCH_OF_NODE/data"):
        expanded("$SCRATCH_OF_NODE/data")
    with pytest.raises(DataError, match="--data-node-cache-path data"):
        expanded("data")


def test_a_training_reads_the_same_samples_from_copies_of_indices_and_orders(make_pair: MakePair, folder: Path) -> None:
    words = ["1", make_pair("one", lengths=[40] * 9), "2", make_pair("other", lengths=[30] * 9)]
    plain = build_datasets(options_for(data_path=words), 50, 0, 0).train
    local = build_datasets(options_for(data_path=words, data_node_cache_path=str(folder)), 50, 0, 0).train
    assert plain is not None and local is not None
    assert [local[place].tolist() for place in range(50)] == [plain[place].tolist() for place in range(50)]
    assert len(copies(folder)) == 2
    assert len(list(folder.glob("*/*.npy"))) == 7
