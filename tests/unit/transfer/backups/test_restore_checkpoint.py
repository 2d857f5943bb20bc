"""Bringing a checkpoint back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.state import lease
from opsctl.transfer.backups.json_output import RestoredCheckpoint
from opsctl.transfer.backups.restore_checkpoint import (
    choose,
    restore_to_folder,
    restore_to_run,
)
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.urls import open_store
from tests.killed_in_python import killed_at_every_step
from tests.unit.jobs.control.checkpoint_runs import latest, save, seen, there
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import a_run, back_up_now, contents, edit_manifest
from trainer.formats.checkpoint.manifest import check_checksums, fault_of, latest_checkpoint, read_manifest

disk = backed_up_runs.disk


@pytest.fixture
def folder(tmp_path: Path, disk: Path) -> Path:
    found = a_run(tmp_path / "run", 10, 20, 30, 40)
    assert back_up_now(found, disk).problems == []
    return found


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "output" / "checkpoints" / f"global_step{step}"


def into_run(folder: Path, disk: Path, step: int, weights_only: bool = False) -> RestoredCheckpoint:
    with open_store(str(disk)) as store:
        chosen = choose(store, step, weights_only)
        return restore_to_run(store, chosen, seen(folder).paths, "tiny", Flow())


def test_what_was_lost_is_back_byte_for_byte_and_the_latest_stays(folder: Path, disk: Path) -> None:
    before = contents(checkpoint(folder, 20))
    shutil.rmtree(checkpoint(folder, 20))
    done = into_run(folder, disk, 20)
    assert (done.whole, done.latest, done.without_optimizer) == (True, False, False)
    assert contents(checkpoint(folder, 20)) == before and latest(folder) == "global_step40"


def test_where_there_is_none_it_is_the_latest(folder: Path, disk: Path) -> None:
    shutil.rmtree(folder / "output" / "checkpoints")
    assert into_run(folder, disk, 20).latest
    found = latest_checkpoint(folder / "output" / "checkpoints")
    assert found is not None and found.manifest.iteration == 20
    assert not into_run(folder, disk, 40).latest and latest(folder) == "global_step20"


def test_without_optimizer_states_it_says_so_whichever_way_it_is_there(folder: Path, disk: Path) -> None:
    for step in (10, 20):
        shutil.rmtree(checkpoint(folder, step))
        assert into_run(folder, disk, step, weights_only=True).without_optimizer
        manifest = read_manifest(checkpoint(folder, step))
        assert manifest.layout["optimizer"] == "none" and list(manifest.files) == ["layer_01-model_00-model_states.pt"]
        assert fault_of(checkpoint(folder, step)) is None
        check_checksums(checkpoint(folder, step), manifest)


def test_what_is_not_there_or_only_in_part_is_refused_with_the_way(folder: Path, disk: Path) -> None:
    with open_store(str(disk)) as store:
        with pytest.raises(OpsctlError, match="--weights-only"):
            choose(store, 10, False)
        with pytest.raises(OpsctlError, match="global_step11"):
            choose(store, 11, False)
        (disk / "checkpoints" / "global_step40" / "layer_01-model_00-model_states.pt").write_text("short")
        with pytest.raises(OpsctlError, match=r"layer_01-model_00-model_states\.pt.*\b5 bytes"):
            choose(store, 40, False)
        (disk / "checkpoints" / "global_step20" / "manifest.json").unlink()
        with pytest.raises(OpsctlError, match=r"global_step20\b.*manifest\.json"):
            choose(store, 20, False)


def test_a_finished_restore_that_is_typed_again_changes_nothing(folder: Path, disk: Path, tmp_path: Path) -> None:
    shutil.rmtree(checkpoint(folder, 20))
    assert not into_run(folder, disk, 20).was_there
    before = contents(checkpoint(folder, 20))
    again = into_run(folder, disk, 20)
    assert again.was_there and again.whole and not again.latest and contents(checkpoint(folder, 20)) == before
    for was_there in (False, True):
        with open_store(str(disk)) as store:
            done = restore_to_folder(store, choose(store, 20, True), tmp_path / "weights", Flow())
        assert done.was_there is was_there and done.without_optimizer


def test_what_is_there_and_is_not_as_it_was_sent_is_not_called_complete(folder: Path, disk: Path) -> None:
    weights = checkpoint(folder, 20) / "layer_01-model_00-model_states.pt"
    weights.write_bytes(b"!" + weights.read_bytes()[1:])
    with pytest.raises(OpsctlError, match=r"layer_01.*checksum"):
        into_run(folder, disk, 20)
    assert weights.read_bytes()[:1] == b"!"


def test_nothing_is_overwritten_and_nobody_may_be_training(folder: Path, disk: Path) -> None:
    edit_manifest(checkpoint(folder, 20), consumed_valid_samples=1)  # another save
    before = contents(checkpoint(folder, 20))
    with pytest.raises(OpsctlError, match="global_step20"):
        into_run(folder, disk, 20)
    assert contents(checkpoint(folder, 20)) == before
    shutil.rmtree(checkpoint(folder, 20))
    own = lease.take(seen(folder).paths, "1.x", 1, "ada", lambda _held: None)
    assert isinstance(own, lease.OwnLease)
    with pytest.raises(OpsctlError, match=r"global_step20\b.*\btiny\b.*\bjob 1\b.*\bada\b"):
        into_run(folder, disk, 20)
    assert there(folder) == [10, 30, 40]


def test_a_file_that_is_not_as_it_was_is_refused_and_nothing_has_its_name(folder: Path, disk: Path) -> None:
    shutil.rmtree(checkpoint(folder, 20))
    spoilt = disk / "checkpoints" / "global_step20" / "layer_01-model_00-model_states.pt"
    whole = spoilt.read_bytes()
    spoilt.write_bytes(b"!" + whole[1:])
    with pytest.raises(OpsctlError, match=r"layer_01-model_00-model_states\.pt.*checksum"):
        into_run(folder, disk, 20)
    assert there(folder) == [10, 30, 40]
    spoilt.write_bytes(whole)
    assert into_run(folder, disk, 20).whole


def test_what_lies_beside_of_another_restore_is_cleared_away(folder: Path, disk: Path) -> None:
    shutil.rmtree(checkpoint(folder, 20))
    beside = folder / "output" / "checkpoints" / ".restoring-global_step20"
    beside.mkdir()
    (beside / "zero_pp_rank_7_mp_rank_00_optim_states.pt").write_text("of another layout")
    (beside / "layer_01-model_00-model_states.pt").write_text("half")
    into_run(folder, disk, 20)
    assert set(contents(checkpoint(folder, 20))) == {*read_manifest(checkpoint(folder, 20)).files, "manifest.json"}


def test_killed_at_any_step_it_is_whole_or_not_there_and_the_next_one_goes_on(tmp_path: Path, disk: Path) -> None:
    folder, steps = a_run(tmp_path / "run", 20), 0
    back_up_now(folder, disk)
    before = contents(checkpoint(folder, 20))
    root = folder / "output" / "checkpoints"
    shutil.rmtree(root)
    for steps in killed_at_every_step(lambda: into_run(folder, disk, 20)):
        if checkpoint(folder, 20).exists():
            assert contents(checkpoint(folder, 20)) == before, steps
            assert latest_checkpoint(root) is not None
            shutil.rmtree(root)
    assert steps > 10 and contents(checkpoint(folder, 20)) == before
    save(folder, 30)
