"""Tests of leftovers, which `trainer.checkpoint.publish` contains."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.trainer.checkpoint.test_publish import names, save
from trainer.checkpoint.destination import Destination
from trainer.checkpoint.publish import clear_leftovers
from trainer.core.files import HeldFolder
from trainer.formats.checkpoint.manifest import fault_of, set_aside

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make two checkpoints, the second one set aside."""
    destination = Destination(HeldFolder(tmp_path / "checkpoints"))
    save(destination, 1)
    save(destination, 2)
    folder = tmp_path / "checkpoints"
    (folder / "global_step2").rename(set_aside(folder / "global_step2"))
    return folder


def test_a_whole_one_whose_place_is_empty_is_put_back(tmp_path: Path, root: Path) -> None:
    clear_leftovers(HeldFolder(root))
    assert names(tmp_path) == {"global_step1", "global_step2", "latest"}
    assert fault_of(root / "global_step2") is None


def test_one_that_was_replaced_is_removed(tmp_path: Path, root: Path) -> None:
    shutil.copytree(set_aside(root / "global_step2"), root / "global_step2")
    clear_leftovers(HeldFolder(root))
    assert names(tmp_path) == {"global_step1", "global_step2", "latest"}


def test_one_whose_replacement_is_damaged_stays(tmp_path: Path, root: Path) -> None:
    shutil.copytree(set_aside(root / "global_step2"), root / "global_step2")
    (root / "global_step2" / "weights").write_bytes(b"")
    clear_leftovers(HeldFolder(root))
    assert names(tmp_path) == {"global_step1", "global_step2", set_aside(root / "global_step2").name, "latest"}


def test_half_a_one_is_removed_as_all_else_that_no_save_has_finished(tmp_path: Path, root: Path) -> None:
    (set_aside(root / "global_step2") / "weights").unlink()
    (root / ".tmp-global_step3.0123").mkdir()
    (root / ".latest.host.12.0123.tmp").touch()
    clear_leftovers(HeldFolder(root))
    assert names(tmp_path) == {"global_step1", "latest"}


def test_what_cannot_be_removed_stays_and_is_told_and_keeps_nobody_from_saving(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on NFS, where a process on another node may still have a file of it open."""
    busy = root / ".tmp-global_step3.0123"
    busy.mkdir()
    really = shutil.rmtree

    def refused(path: Path, ignore_errors: bool = False) -> None:
        if Path(path).name != busy.name:
            really(path, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", refused)
    save(Destination(HeldFolder(root)), 4)
    assert (root / "latest").read_text() == "global_step4" and busy.is_dir()
    (complaint,) = capsys.readouterr().err.splitlines()
    assert str(busy) in complaint
