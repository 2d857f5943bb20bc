"""Files of the trainer are written whole or not at all, with their folder's permissions."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from trainer.core.files import be_as_open_as_its_folder, create_file, make_folder, write_atomically

#: Of a folder, and what a file, a program and a folder in it get.
OPENNESS = [
    (0o700, 0o600, 0o700, 0o700),
    (0o2770, 0o660, 0o770, 0o2770),
    (0o2775, 0o664, 0o775, 0o2775),
    (0o755, 0o644, 0o755, 0o755),
    (0o1777, 0o664, 0o775, 0o775),
]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(("above", "file", "program", "folder"), OPENNESS)
@pytest.mark.parametrize("umask", [0o077, 0o022, 0o000])
def test_what_is_new_is_as_open_as_its_folder_whatever_the_umask(
    tmp_path: Path, umask: int, above: int, file: int, program: int, folder: int
) -> None:
    tmp_path.chmod(above)
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", "text")
        write_atomically(tmp_path / "program", "text", runnable=True)
        make_folder(tmp_path / "one" / "two")
    finally:
        os.umask(before)
    assert [mode(tmp_path / name) for name in ("file", "program", "one", "one/two")] == [file, program, folder, folder]


def test_a_group_that_is_not_the_folders_gets_no_more_than_everybody(tmp_path: Path) -> None:
    os.chown(tmp_path, -1, 100)
    for above, expected in ((0o770, 0o600), (0o775, 0o644)):
        tmp_path.chmod(above)  # without setgid, what is made is of our group
        write_atomically(tmp_path / "file", "text")
        assert mode(tmp_path / "file") == expected
    make_folder(tmp_path / "folder")
    assert mode(tmp_path / "folder") == 0o755


def test_what_was_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder").chmod(0o750)  # whatever the umask
    make_folder(tmp_path / "folder" / "new")
    assert mode(tmp_path / "folder") == 0o750
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch(0o600)
    (tmp_path / "link").symlink_to(elsewhere)
    tmp_path.chmod(0o755)
    be_as_open_as_its_folder(tmp_path / "link")
    assert mode(elsewhere) == 0o600
    with pytest.raises(NotADirectoryError):
        make_folder(elsewhere / "within")
    with pytest.raises(FileExistsError):
        make_folder(elsewhere)


def test_nothing_that_somebody_put_where_a_file_is_to_be_written_is_opened(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work\n")
    thesis.chmod(0o600)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    guessed = f".file.{socket.gethostname()}.{os.getpid()}.tmp"
    for name in ("file", guessed, "link"):
        (shared / name).symlink_to(thesis)
    os.link(thesis, shared / "second")
    os.mkfifo(shared / "fifo")
    write_atomically(shared / "file", "text")
    assert (shared / "file").read_text() == "text" and not (shared / "file").is_symlink()
    for name in ("link", "second", "fifo"):
        with pytest.raises(FileExistsError):
            create_file(shared / name)
        be_as_open_as_its_folder(shared / name)
    assert thesis.read_text() == "years of work\n" and mode(thesis) == 0o600


def test_a_name_that_changes_hands_while_it_is_looked_at_opens_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thesis, new = tmp_path / "thesis.txt", tmp_path / "new"
    thesis.touch(0o600)
    new.touch(0o600)
    tmp_path.chmod(0o770)
    changed = Path.chmod

    def swapped_before(path: Path, mode: int) -> None:
        new.unlink()
        new.symlink_to(thesis)
        changed(path, mode)

    monkeypatch.setattr(Path, "chmod", swapped_before)
    be_as_open_as_its_folder(new)
    assert mode(thesis) == 0o600
