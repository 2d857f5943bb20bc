"""Folders that are found again wherever they are moved to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainer.core.files import HeldFolder


def test_what_is_written_goes_to_where_the_folder_is(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    held = HeldFolder(tmp_path / "old")
    held.descriptor()
    (tmp_path / "old").rename(tmp_path / "new")
    (held.place() / "file").write_text("words")
    assert (tmp_path / "new" / "file").read_text() == "words"
    assert not (tmp_path / "old").exists()


def test_it_is_called_as_the_user_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ck").mkdir()
    held = HeldFolder(Path("ck"))
    assert held.said("ck is closed") == "ck is closed"
    place = held.place()
    assert held.said(f"{place}/latest beside {place}: {place}0/latest") == f"ck/latest beside ck: {place}0/latest"
    monkeypatch.chdir("/")
    assert HeldFolder(Path("ck")).path == Path("ck")
    assert (held.place() / "x").parent.is_dir()


def test_one_that_was_removed_is_looked_for_by_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    held = HeldFolder(folder)
    with pytest.raises(FileNotFoundError):
        held.place()
    folder.mkdir()
    held.place()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        held.place()
    folder.mkdir()
    (held.place() / "file").touch()
    assert (folder / "file").exists()
    assert len([fd for fd in os.listdir("/proc/self/fd") if _leads_to(fd, tmp_path)]) == 1, "none is left open"  # noqa: PTH208


def _leads_to(fd: str, folder: Path) -> bool:
    try:
        return str(Path("/proc/self/fd", fd).readlink()).startswith(str(folder))
    except OSError:
        return False
