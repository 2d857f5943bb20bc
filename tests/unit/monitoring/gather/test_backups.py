"""Test what is gathered of backups: by the published table, the checkpoints here and the ledger."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opsctl.monitoring.runner import gather
from opsctl.monitoring.snapshot import FarCopies, Part
from opsctl.run.config.load import load_run_file
from opsctl.run.state.revisions import publish
from opsctl.transfer.backups.data_copies import back_up_data
from opsctl.transfer.backups.data_sets import named_sets
from opsctl.transfer.backups.destination import Wish
from opsctl.transfer.backups.verify import verify
from tests.tiny_run import ready
from tests.unit.jobs.control.checkpoint_runs import save, seen
from tests.unit.monitoring.run_folder import slurm
from tests.unit.transfer.backups.backed_up_runs import TABLE, a_run, back_up_now, destination


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return a_run(tmp_path / "run", 10, 20, 30, 40)


@pytest.fixture
def far(folder: Path, tmp_path: Path) -> Path:
    """A destination that the published run file names."""
    far = tmp_path / "far"
    far.mkdir()
    path = folder / "run.toml"
    path.write_text(path.read_text() + f'\n[backup]\nto = ["{far}/"]\nfull_every = 20\nweights_every = 10\n')
    publish(ready(load_run_file(path)))
    return far


def copies(folder: Path) -> tuple[FarCopies, ...]:
    return gather(seen(folder), slurm([]), Part.BACKUPS).copies


def overdue(folder: Path) -> set[str]:
    (one,) = copies(folder)
    return {found.name for found in one.overdue}


def test_a_run_without_the_table_has_none(folder: Path) -> None:
    assert copies(folder) == ()


def test_what_the_backup_would_send_is_overdue_and_what_it_has_sent_is_not(folder: Path, far: Path) -> None:
    assert overdue(folder) == {f"global_step{step}" for step in (10, 20, 30, 40)}
    back_up_now(folder, far)
    assert overdue(folder) == set() and copies(folder)[0].lost == ()
    saved = save(folder, 60)
    assert overdue(folder) == {"global_step60"}
    (one,) = copies(folder)[0].overdue
    assert one.saved_at.timestamp() == pytest.approx((saved / "manifest.json").stat().st_mtime)
    save(folder, 20, loss=1.5)
    assert overdue(folder) == {"global_step20"}  # the latest: what is later was given up


def test_a_copy_that_a_verification_misses_is_lost_and_other_copies_are_known(
    folder: Path, far: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    back_up_now(folder, far)
    back_up_now(folder, other, TABLE, Wish((40,)))
    for step in (20, 40):
        (far / "checkpoints" / f"global_step{step}" / "layer_01-model_00-model_states.pt").unlink()
    with destination(folder, far) as place:
        verify(place, None, lambda _line: None)
    for step in (20, 40):
        shutil.rmtree(folder / "output" / "checkpoints" / f"global_step{step}")
    (one,) = copies(folder)
    assert sorted((lost.name, lost.is_here, lost.is_elsewhere) for lost in one.lost) == [
        ("global_step20", False, False),
        ("global_step40", False, True),
    ]
    assert one.lost[0].why


def test_data_sets_are_wanted_until_they_are_there_and_lost_when_a_verification_says_so(
    folder: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    for one in (tmp_path / "far", shared):
        one.mkdir()
    path = folder / "run.toml"
    table = f'[backup]\nto = ["{tmp_path}/far"]\ndata = true\ndata_to = ["{shared}/"]\n'
    path.write_text(f"{path.read_text()}\n{table}")
    publish(ready(load_run_file(path)))
    revision = seen(folder).revision
    assert revision is not None
    far, there = copies(folder)
    assert far.data_wanted_since is None and (there.to, there.overdue) == (str(shared), ())
    assert there.data_wanted_since == revision.created_at
    with destination(folder, shared) as place:
        sets = named_sets(revision.options())
        back_up_data(place, sets, lambda _line: None, is_shared=True)
        assert copies(folder)[1].data_wanted_since is None
        next(shared.glob("data/*/*.bin")).unlink()
        verify(place, None, lambda _line: None)
    lost = copies(folder)[1].data_lost
    assert lost is not None and (lost.name, lost.is_here, lost.is_elsewhere) == ("data sets", True, False)
    for file in sets[0].files.values():
        file.unlink()
    lost = copies(folder)[1].data_lost
    assert lost is not None and not lost.is_here
