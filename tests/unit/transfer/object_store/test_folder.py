from __future__ import annotations

import filecmp
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.folder import fetch
from opsctl.transfer.object_store.sources import digest_of, file_source
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import ANYTHING, PART, Expected, FileFault, Outcome, StoreError
from opsctl.transfer.object_store.urls import open_store
from tests.killed_in_python import killed_at_every_step


@pytest.fixture
def small() -> Iterator[Path]:
    """Another file system, of 1 MiB."""
    if os.getuid():
        pytest.skip("mounting needs root")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def get(store: Store, files: dict[str, Expected], folder: Path, prefix: str = "") -> Outcome:
    """Fetch files of a store."""
    below = f"{prefix}/" if prefix else ""
    return fetch(files, lambda name: store.source(below + name, files[name]), folder, Flow())


def files_of(folder: Path) -> dict[str, Expected]:
    return {str(path.relative_to(folder)): ANYTHING for path in folder.rglob("*") if path.is_file()}


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def same(one: Path, other: Path) -> bool:
    """As diff sees it, and nothing beside."""
    return subprocess.run(["diff", "-r", one, other], capture_output=True).returncode == 0


def parts(folder: Path) -> list[Path]:
    return list(folder.rglob(f"{PART}*"))


def test_every_file_arrives_and_comes_back_whatever_its_name(here: Path, there: Path, tmp_path: Path) -> None:
    with open_store(str(there)) as store:
        outcome = store.put(here, files_of(here), "run 1/-step")
        assert not outcome.faults
        assert same(here, there / "run 1" / "-step")
        assert set(store.list("run 1/-step")) == set(files_of(here))
        back = tmp_path / "back"
        back.mkdir()
        known = {name: Expected(moved.bytes, moved.xxh64) for name, moved in outcome.moved.items()}
        get(store, known, back, "run 1/-step").raise_faults()
    assert same(here, back)
    assert known["large.bin"].xxh64 == xxhash.xxh64((here / "large.bin").read_bytes()).hexdigest()


def test_only_named_files_are_fetched(here: Path, there: Path, tmp_path: Path) -> None:
    with open_store(f"file://{there}") as store:
        store.put(here, files_of(here)).raise_faults()
        back = tmp_path / "back"
        back.mkdir()
        get(store, {"a b": ANYTHING, "layer_01/shard 1.pt": ANYTHING}, back).raise_faults()
    assert set(files_of(back)) == {"a b", "layer_01/shard 1.pt"}


def test_a_name_that_is_no_utf8_is_copied_as_it_is(tmp_path: Path, there: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / os.fsdecode(b"\xff\xfe.log")).write_text("x")
    with open_store(str(there)) as store:
        store.put(here, files_of(here)).raise_faults()
    assert [os.fsencode(path.name) for path in there.iterdir()] == [b"\xff\xfe.log"]


def test_what_is_there_is_not_sent_again(here: Path, there: Path) -> None:
    with open_store(str(there)) as store:
        store.put(here, files_of(here)).raise_faults()
        (there / "a b").unlink()
        before = {path: path.stat().st_ino for path in there.rglob("*") if path.is_file()}
        moved = store.put(here, files_of(here)).moved
    assert [name for name, one in moved.items() if not one.was_there] == ["a b"]
    assert all(path.stat().st_ino == number for path, number in before.items())


def test_what_is_there_with_other_contents_of_the_same_size_is_sent_again(here: Path, there: Path) -> None:
    with open_store(str(there)) as store:
        store.put(here, files_of(here)).raise_faults()
        flip(there / "large.bin")
        moved = store.put(here, files_of(here)).moved
    assert [name for name, one in moved.items() if not one.was_there] == ["large.bin"]
    assert same(here, there)


def flip(path: Path) -> None:
    """Change one byte and neither size nor time."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(times.st_size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_one_flipped_bit_is_found_by_reading(here: Path, there: Path) -> None:
    with open_store(str(there)) as store:
        moved = store.put(here, files_of(here)).moved
        known = {name: Expected(one.bytes, one.xxh64) for name, one in moved.items()}
        assert not store.check(known).faults
        flip(there / "large.bin")
        (there / "a b").unlink()
        assert set(store.check(known).faults) == {"large.bin", "a b"}
        back = there.parent / "back"
        back.mkdir()
        assert set(get(store, known, back).faults) == {"large.bin", "a b"}
    assert not (back / "large.bin").exists() and not parts(back)


def test_a_file_that_is_not_what_it_has_to_be_is_refused_by_name(here: Path, there: Path) -> None:
    wrong = {"large.bin": Expected((4 << 20) + 17, "0" * 16), "a b": Expected(5)}
    with open_store(str(there)) as store:
        outcome = store.put(here, wrong)
    assert not outcome.moved and not names_in(there)
    assert outcome.faults["a b"] == "'a b' has 1000 bytes instead of 5"
    assert "instead of 0000000000000000" in outcome.faults["large.bin"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: os.truncate(path, 10), "shrank"),
        (lambda path: path.open("ab").write(b"x"), "grew"),
        (lambda path: flip_and_touch(path), "written"),
        (lambda path: path.replace(path.with_name("elsewhere")), "replaced"),
        (lambda path: replaced(path), "replaced"),
    ],
    ids=["shrinks", "grows", "written", "removed", "replaced"],
)
def test_a_file_that_changes_while_it_is_read_is_refused_by_name(
    here: Path, there: Path, change: object, told: str
) -> None:
    changed: list[object] = []

    def reached(_: int) -> None:
        if not changed:
            changed.append(change(here / "large.bin"))  # type: ignore[operator]

    with open_store(str(there)) as store:
        outcome = store.put(here, {"large.bin": ANYTHING}, flow=Flow(reached=reached))
    assert told in outcome.faults["large.bin"] and "'large.bin'" in outcome.faults["large.bin"]
    assert not names_in(there)


def flip_and_touch(path: Path) -> None:
    flip(path)
    os.utime(path)


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def test_of_a_file_that_grows_what_there_was_is_sent(here: Path, there: Path) -> None:
    log = here / "main.log"
    log.write_text("line 1\nline 2\nhal")

    def reached(_: int) -> None:
        with log.open("a") as file:
            file.write("f a line\n")

    with open_store(str(there)) as store:
        store.put(here, {"main.log": Expected(14, grows=True)}, flow=Flow(reached=reached)).raise_faults()
    assert (there / "main.log").read_text() == "line 1\nline 2\n"


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a//b", ".", "", "a/.", "a\0b"])
def test_no_name_leads_out(here: Path, there: Path, name: str) -> None:
    with open_store(str(there)) as store:
        assert store.put(here, {name: ANYTHING}).faults[name].startswith(f"{name!a} ")
        assert get(store, {name: ANYTHING}, here).faults[name].startswith(f"{name!a} ")
        with pytest.raises(FileFault, match=f"^{re.escape(f'{name!a}')} "):
            store.remove([name])


def test_no_link_is_followed(here: Path, there: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("secret")
    (here / "link").symlink_to(tmp_path / "secret" / "key")
    (here / "folder").symlink_to(tmp_path / "secret")
    os.mkfifo(here / "pipe")
    (there / "in").symlink_to(tmp_path / "secret")
    with open_store(str(there)) as store:
        assert set(store.put(here, dict.fromkeys(("link", "folder/key", "pipe"), ANYTHING)).faults) == {
            *("link", "folder/key", "pipe")
        }
        assert "in/a b" in store.put(here, {"a b": ANYTHING}, "in").faults["a b"]
    assert names_in(tmp_path / "secret") == ["key"]


def test_what_is_made_is_as_open_as_the_folder(here: Path, there: Path) -> None:
    there.chmod(0o2770)
    old = os.umask(0o077)
    try:
        with open_store(str(there)) as store:
            store.put(here, {"layer_01/shard 1.pt": ANYTHING}).raise_faults()
    finally:
        os.umask(old)
    assert stat.S_IMODE((there / "layer_01").stat().st_mode) == 0o2770
    assert stat.S_IMODE((there / "layer_01/shard 1.pt").stat().st_mode) == 0o660


def test_a_full_disk_is_one_line_and_leaves_what_was_there(here: Path, small: Path) -> None:
    (small / "large.bin").write_text("older")
    with open_store(str(small)) as store:
        # Both files are written at once, so either may find the disk full.
        with pytest.raises(StoreError, match=rf"^'(large\.bin|a b)' in {small}: No space left[^\n]*$"):
            store.put(here, {"a b": ANYTHING, "large.bin": ANYTHING})
        assert (small / "large.bin").read_text() == "older" and not parts(small)
        store.put(here, {"a b": ANYTHING}).raise_faults()


def test_a_destination_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path}/not-mounted.*: No such file or directory"):
        open_store(str(tmp_path / "not-mounted"))
    assert not names_in(tmp_path)


def test_a_read_only_destination_is_one_line(here: Path, small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    with open_store(str(small)) as store, pytest.raises(StoreError, match="Read-only file system"):
        store.put(here, {"a b": ANYTHING})


def test_killed_at_any_step_nothing_half_there_has_a_name_and_the_next_cleans_up(here: Path, there: Path) -> None:
    files = dict.fromkeys(("a b", "large.bin", "layer_01/shard 1.pt", "manifest.json"), ANYTHING)

    def send() -> None:
        with open_store(str(there)) as store:
            store.put(here, files, "step").raise_faults()

    deaths = 0
    for _ in killed_at_every_step(send):
        deaths += 1
        whole = [path for path in (there / "step").rglob("*") if path.is_file() and not path.name.startswith(PART)]
        for path in whole:
            assert filecmp.cmp(path, here / path.relative_to(there / "step"), shallow=False)
    assert deaths >= len(files)  # each file at least once; what has arrived is not sent again
    assert not parts(there) and set(files_of(there / "step")) == set(files)


def test_a_part_that_somebody_writes_now_is_left(here: Path, there: Path) -> None:
    with open_store(str(there)) as one, open_store(str(there)) as other:

        def reached(_: int) -> None:
            assert len(parts(there)) == 1
            other.put(here, {"large.bin": ANYTHING}).raise_faults()
            assert len(parts(there)) == 1

        one.put(here, {"large.bin": ANYTHING}, flow=Flow(reached=reached)).raise_faults()
    assert filecmp.cmp(here / "large.bin", there / "large.bin", shallow=False) and not parts(there)


def test_a_disk_that_reads_other_bytes_than_were_written_is_found(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the disk: what is written goes to it with one bit changed."""
    write = os.write

    def lying(fd: int, data: bytes) -> int:
        changed = bytearray(data)
        changed[-1] ^= 1
        return write(fd, changed)

    monkeypatch.setattr(os, "write", lying)
    with open_store(str(there)) as store:
        outcome = store.put(here, {"a b": ANYTHING})
    assert "read back from" in outcome.faults["a b"] and not names_in(there)


def test_a_destination_that_loses_a_file_after_taking_it_is_found(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(str(there)) as store:
        settle = store.settle

        def losing(names: list[str]) -> object:
            (there / "a b").unlink()
            return settle(names)

        monkeypatch.setattr(store, "settle", losing)
        outcome = store.put(here, {"a b": ANYTHING, "-rf": ANYTHING, "manifest.json": ANYTHING})
    assert [*outcome.faults] == ["a b"] and str(there) in outcome.faults["a b"]


def test_an_interruption_ends_it_and_leaves_no_part(here: Path, there: Path) -> None:
    def reached(_: int) -> None:
        raise KeyboardInterrupt

    with open_store(str(there)) as store, pytest.raises(KeyboardInterrupt):
        store.put(here, files_of(here), flow=Flow(reached=reached))
    assert not parts(there)


def test_removed_files_are_gone_with_folders_that_are_empty_then(here: Path, there: Path) -> None:
    with open_store(str(there)) as store:
        store.put(here, files_of(here), "run/step").raise_faults()
        store.remove([name for name in files_of(here) if name != "a b"], "run/step")
        assert set(store.list("run")) == {"step/a b"} and not (there / "run/step/layer_01").exists()
        store.remove(["a b", "never there"], "run/step")
    assert not names_in(there)


def test_a_source_can_be_read_again(here: Path) -> None:
    held = os.open(here, os.O_RDONLY)
    source = file_source(held, "large.bin", ANYTHING)
    data = (here / "large.bin").read_bytes()
    assert b"".join(bytes(one) for one in source.chunks()) == data
    assert digest_of(source) == digest_of(source) == xxhash.xxh64(data).hexdigest()
    os.close(held)
