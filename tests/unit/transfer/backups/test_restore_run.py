"""A whole run on a machine that has nothing of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import read_state, write_state
from opsctl.run.checkpoints.rollbacks import read_rollbacks
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import BackupTable
from opsctl.run.state.identity import Identity, Standing, place_of, read_run_id
from opsctl.transfer.backups.json_output import RestoredRun
from opsctl.transfer.backups.restore_checkpoint import choose, restore_to_run
from opsctl.transfer.backups.restore_run import Asked, restore_run, with_output
from opsctl.transfer.backups.run_files import back_up_rest
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.urls import open_store
from tests.killed_in_python import killed_at_every_step
from tests.unit.jobs.control.checkpoint_runs import latest, save, seen, there
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import a_run, back_up_now, contents, destination
from tests.unit.transfer.object_store.test_folder import flip

disk = backed_up_runs.disk


@pytest.fixture
def folder(tmp_path: Path, disk: Path) -> Path:
    """A run that is backed up."""
    found = a_run(tmp_path / "there" / "run", 10, 20, 30)
    paths = seen(found).paths
    paths.logs.mkdir()
    paths.main_log.write_text("iteration 30\n")
    back_up_now(found, disk)
    with destination(found, disk) as place:
        back_up_rest(place, BackupTable(), found / "run.toml")
    return found


def back(disk: Path, folder: Path, asked: Asked | None = None) -> RestoredRun:
    with open_store(str(disk)) as store:
        return restore_run(store, folder, asked or Asked(), Flow(), lambda _line: None)


def revisions(folder: Path) -> dict[str, bytes]:
    return contents(folder / "output" / ".opsctl" / "revisions")


def test_it_is_the_same_run_with_its_newest_whole_checkpoint_in_another_place(
    folder: Path, disk: Path, tmp_path: Path
) -> None:
    run_id, revision = read_run_id(seen(folder).paths), revisions(folder)
    saved = contents(folder / "output" / "checkpoints" / "global_step20")
    shutil.rmtree(folder / "output")
    done = back(disk, tmp_path / "here")
    here = tmp_path / "here"
    assert (done.checkpoint, done.warnings) == (20, []) and str(tmp_path / "there") in done.standing
    assert there(here) == [20] and latest(here) == "global_step20"
    assert contents(here / "output" / "checkpoints" / "global_step20") == saved
    paths = seen(here).paths
    assert paths.main_log.read_text() == "iteration 30\n" and read_run_id(paths) == run_id
    assert place_of(paths).standing is Standing.SAME and revisions(here) == revision
    assert read_rollbacks(paths)[-1].why == f"restored from {disk}"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["here", "there"]
    assert sorted(one.name for one in here.iterdir()) == ["output", "run.toml"]


def test_a_checkpoint_with_nan_comes_along_only_where_it_is_named_or_there_is_no_other(
    folder: Path, disk: Path, tmp_path: Path
) -> None:
    save(folder, 40, not_finite="rank 0 holds weights that are not finite")
    back_up_now(folder, disk)
    assert back(disk, tmp_path / "here").checkpoint == 20
    assert back(disk, tmp_path / "named", Asked(step=40, stands_as="copy")).checkpoint == 40


def test_beside_the_original_it_is_a_run_of_its_own(folder: Path, disk: Path, tmp_path: Path) -> None:
    done = back(disk, tmp_path / "here", Asked(step=20, weights_only=True))
    paths = seen(tmp_path / "here").paths
    assert str(tmp_path / "there") in done.standing and read_run_id(paths) is None
    assert list(paths.state.glob("copied-from-*"))
    before = contents(disk)
    with pytest.raises(OpsctlError, match=r"\btiny\b"):
        back_up_now(tmp_path / "here", disk)  # the copies there are the original's
    assert contents(disk) == before
    with pytest.raises(OpsctlError, match="--as copy"):
        back(disk, tmp_path / "too", Asked(stands_as="same"))


def test_where_nobody_can_tell_who_restores_has_to_say(folder: Path, disk: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "there")  # with the folder around it: as on a machine that has no such disk
    with pytest.raises(OpsctlError, match=r"--as same\b.* --as copy"):
        back(disk, tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert back(disk, tmp_path / "here", Asked(stands_as="same")).checkpoint == 20
    assert place_of(seen(tmp_path / "here").paths).standing is Standing.SAME
    assert back(disk, tmp_path / "too", Asked(stands_as="copy")).checkpoint == 20
    assert read_run_id(seen(tmp_path / "too").paths) is None


def test_a_new_folder_that_has_got_the_number_of_the_removed_one_is_not_taken_for_it(
    folder: Path, disk: Path, tmp_path: Path
) -> None:
    around = (tmp_path / "there").rename(tmp_path / "away")
    with pytest.raises(OpsctlError, match=r"--as same\b.* --as copy"):
        back(disk, tmp_path / "here")
    (made,) = tmp_path.glob(".here.restoring-*/output")  # what the next try continues with
    around.rename(tmp_path / "there")
    paths = seen(folder).paths
    identity = read_state(paths.output, paths.identity, Identity)
    assert identity is not None
    write_state(paths.output, paths.identity, replace(identity, inode=made.stat().st_ino))
    with destination(folder, disk) as place:
        back_up_rest(place, BackupTable(), folder / "run.toml")
    shutil.rmtree(tmp_path / "there")
    with pytest.raises(OpsctlError, match=r"--as same\b.* --as copy"):
        back(disk, tmp_path / "here")


def test_a_finished_restore_that_is_typed_again_changes_nothing(folder: Path, disk: Path, tmp_path: Path) -> None:
    first = back(disk, tmp_path / "here")
    (tmp_path / "here" / "run.toml").write_text("edited since")
    before = contents(tmp_path / "here")
    again = back(disk, tmp_path / "here")
    assert (first.was_there, again.was_there) == (False, True) and contents(tmp_path / "here") == before
    assert (again.checkpoint, again.standing, again.run) == (
        first.checkpoint,
        first.standing,
        first.run,
    )
    with pytest.raises(OpsctlError, match="here"):
        back(disk, tmp_path / "here", Asked(with_checkpoint=False))  # it is not what is there
    assert contents(tmp_path / "here") == before


@pytest.mark.parametrize("lost", ["global_step20", "global_step20/manifest.json", "."])
def test_a_restored_run_that_lost_its_checkpoint_is_not_called_complete(
    folder: Path, disk: Path, tmp_path: Path, lost: str
) -> None:
    back(disk, tmp_path / "here")
    gone = tmp_path / "here" / "output" / "checkpoints" / lost
    gone.unlink() if gone.is_file() else shutil.rmtree(gone)
    with pytest.raises(OpsctlError, match="checkpoints restore --from "):
        back(disk, tmp_path / "here")


@pytest.mark.parametrize("damage", ["size", "contents"])
def test_a_restored_run_with_a_damaged_checkpoint_is_not_called_complete(
    folder: Path, disk: Path, tmp_path: Path, damage: str
) -> None:
    shutil.rmtree(folder / "output")
    back(disk, tmp_path / "here")
    step = tmp_path / "here" / "output" / "checkpoints" / "global_step20"
    file = next(one for one in sorted(step.iterdir()) if one.name.endswith(".pt") and one.stat().st_size)
    flip(file) if damage == "contents" else os.truncate(file, 0)
    with pytest.raises(OpsctlError, match=rf"{file}.* move .* checkpoints restore --from "):
        back(disk, tmp_path / "here")
    shutil.move(step, tmp_path / "damaged")
    with open_store(str(disk)) as store:
        restore_to_run(store, choose(store, 20, False), seen(tmp_path / "here").paths, "tiny", Flow())
    assert back(disk, tmp_path / "here").was_there


def test_a_restored_run_is_backed_up_without_the_note_of_its_restore(folder: Path, disk: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder / "output")
    back(disk, tmp_path / "here")
    with destination(tmp_path / "here", disk) as place:
        snapshot = back_up_rest(place, BackupTable(), tmp_path / "here" / "run.toml").snapshot
    assert snapshot is not None and not [name for name in snapshot.files if "restored" in name]


def test_nothing_is_overwritten_and_nothing_comes_from_where_nothing_is(
    folder: Path, disk: Path, tmp_path: Path
) -> None:
    before = contents(folder)
    with pytest.raises(OpsctlError, match=str(folder)):
        back(disk, folder)
    assert contents(folder) == before
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(OpsctlError, match="empty"):
        back(empty, tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_look_that_leads_out_of_the_folder_is_refused(folder: Path, disk: Path, tmp_path: Path) -> None:
    snapshot = max((disk / "rest").glob("*.json"))
    snapshot.write_text(snapshot.read_text().replace('"1/output/logs/main_log.txt"', '"1/output/../../precious"'))
    with pytest.raises(OpsctlError, match="precious"):
        back(disk, tmp_path / "here")
    assert not (tmp_path / "here").exists() and not list(tmp_path.rglob("precious"))


def test_an_output_elsewhere_is_corrected_in_the_run_file(folder: Path, disk: Path, tmp_path: Path) -> None:
    run_file = folder / "run.toml"
    elsewhere = tmp_path / "scratch"
    (folder / "output").rename(elsewhere)
    run_file.write_text(run_file.read_text().replace('output = "output"', f'output = "{elsewhere}"  # big disk'))
    with destination(folder, disk) as place:
        back_up_rest(place, BackupTable(), run_file)
    shutil.rmtree(elsewhere)
    done = back(disk, tmp_path / "here", Asked(stands_as="same"))
    assert "opsctl revise" in done.warnings[0]
    assert seen(tmp_path / "here").paths == RunPaths(tmp_path / "here" / "output")


def test_only_the_runs_own_output_is_changed_in_the_text() -> None:
    text = '[env]\noutput = "x"\n[run]\nname = "a"\noutput = "/b" # why\n[slurm]\noutput = 1\n'
    assert with_output(text, "output") == text.replace('"/b" # why', '"output"')
    assert with_output('[run]\nname = "a"\n', "output") == '[run]\noutput = "output"\nname = "a"\n'


def test_killed_at_any_step_the_next_one_goes_on(folder: Path, disk: Path, tmp_path: Path) -> None:
    steps, here = 0, tmp_path / "here"
    shutil.rmtree(folder / "output")
    for steps in killed_at_every_step(lambda: back(disk, here)):
        if here.exists():  # whole, whatever step it was
            assert there(here) == [20] and latest(here) == "global_step20", steps
            shutil.rmtree(here)
    assert steps > 10 and latest(here) == "global_step20" and place_of(seen(here).paths).standing is Standing.SAME


def test_a_try_from_another_place_leaves_nothing_in_this_one(folder: Path, disk: Path, tmp_path: Path) -> None:
    other = a_run(tmp_path / "there" / "other", 10)
    paths = seen(other).paths
    paths.logs.mkdir()
    (paths.logs / "of_the_other.txt").write_text("another run\n")
    with backed_up_runs.another_disk() as elsewhere:
        with destination(other, elsewhere) as place:
            back_up_rest(place, BackupTable(), other / "run.toml")
        shutil.rmtree(tmp_path / "there")
        with pytest.raises(OpsctlError, match=r"--as same\b.* --as copy"):
            back(elsewhere, tmp_path / "here")
    back(disk, tmp_path / "here", Asked(stands_as="same"))
    assert not list((tmp_path / "here").rglob("of_the_other.txt"))


def test_an_earlier_try_without_optimizer_states_is_not_called_whole(
    folder: Path, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = contents(folder / "output" / "checkpoints" / "global_step20")

    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("opsctl.transfer.backups.restore_run._fix_run_file", cut_off)
    with pytest.raises(KeyboardInterrupt):
        back(disk, tmp_path / "here", Asked(20, weights_only=True, stands_as="copy"))
    monkeypatch.undo()
    back(disk, tmp_path / "here", Asked(20, stands_as="copy"))
    assert contents(tmp_path / "here" / "output" / "checkpoints" / "global_step20") == saved
