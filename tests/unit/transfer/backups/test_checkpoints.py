"""Backing up a run's checkpoints to another disk, and what prune makes of that."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import xxhash

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control.prune import plan_prune
from opsctl.run.checkpoints.backups import What, read_backups
from opsctl.run.config.schema import BackupTable
from opsctl.transfer.backups.destination import Wish
from opsctl.transfer.backups.schedule import never_whole
from tests.killed_in_python import killed_at_every_step
from tests.unit.jobs.control.checkpoint_runs import save, seen, there
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import (
    TABLE,
    a_run,
    back_up_now,
    contents,
    destination,
    forked,
    prune_now,
    whole_there,
)
from trainer.formats.checkpoint.manifest import check_checksums, fault_of, read_manifest

disk = backed_up_runs.disk
FILES = {"layer_01-model_00-model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"}
WEIGHTS = {"layer_01-model_00-model_states.pt"}
NOTES = {"manifest.json", "backup.json"}


@pytest.fixture
def folder(tmp_path: Path, disk: Path) -> Path:
    return a_run(tmp_path / "run", 10, 20, 30, 40, to=disk)


def test_whole_ones_are_byte_for_byte_there_and_those_of_weights_say_what_they_are(folder: Path, disk: Path) -> None:
    assert back_up_now(folder, disk).problems == []
    assert whole_there(disk) == {
        "checkpoints/global_step20": FILES | NOTES,
        "checkpoints/global_step40": FILES | NOTES,
        "weights/global_step10": WEIGHTS | NOTES,
        "weights/global_step30": WEIGHTS | NOTES,
    }
    here = folder / "output" / "checkpoints"
    for step in (20, 40):
        copied = contents(disk / "checkpoints" / f"global_step{step}")
        copied.pop("backup.json")
        assert copied == contents(here / f"global_step{step}")
    weights = disk / "weights" / "global_step30"
    manifest = read_manifest(weights)
    assert fault_of(weights) is None and manifest.layout["optimizer"] == "none"
    check_checksums(weights, manifest)
    note = json.loads((weights / "backup.json").read_text())
    assert note["left_out"] == ["zero_pp_rank_0_mp_rank_00_optim_states.pt"]
    assert note["of"] == xxhash.xxh64((here / "global_step30" / "manifest.json").read_bytes()).hexdigest()
    assert json.loads((disk / "backup.json").read_text())["run"] == "tiny"


def test_what_is_there_is_not_sent_again_and_what_is_new_is(folder: Path, disk: Path) -> None:
    assert [one.iteration for one in back_up_now(folder, disk).lines] == [40, 30, 20, 10]
    before = {path: path.stat().st_ino for path in disk.rglob("*") if path.is_file()}
    assert back_up_now(folder, disk).lines == []
    save(folder, 50)
    assert [(one.iteration, one.what) for one in back_up_now(folder, disk).lines] == [(50, What.WEIGHTS)]
    assert all(path.stat().st_ino == inode for path, inode in before.items())


def test_prune_lets_go_what_is_whole_somewhere_and_proven_and_nothing_else(folder: Path, disk: Path) -> None:
    for iteration in (50, 60, 70):
        save(folder, iteration)
    assert [one.kept.iteration for one in plan_prune(seen(folder)).going] == [10, 30, 50]
    back_up_now(folder, disk, wish=Wish((40,)))
    back_up_now(folder, disk, wish=Wish((20,), weights_only=True))
    plan = plan_prune(seen(folder))
    assert [one.kept.iteration for one in plan.going] == [10, 30, 40, 50]
    assert plan.verdicts[1].reasons == ("a multiple of 20, not backed up",)
    assert [line.to for line in plan.seen[3].backed_up] == [str(disk)]
    assert prune_now(folder).problems == ()
    assert there(folder) == [20, 60, 70]


def test_another_save_of_an_iteration_is_another_checkpoint(folder: Path, disk: Path) -> None:
    back_up_now(folder, disk)
    save(folder, 20, loss=1.5)
    save(folder, 50)
    save(folder, 60)
    assert 20 not in [one.kept.iteration for one in plan_prune(seen(folder)).going]
    assert {one.iteration for one in back_up_now(folder, disk).lines} == {20, 50, 60}
    here = (folder / "output" / "checkpoints" / "global_step20" / "manifest.json").read_bytes()
    assert (disk / "checkpoints" / "global_step20" / "manifest.json").read_bytes() == here
    assert 20 in [one.kept.iteration for one in plan_prune(seen(folder)).going]


def test_where_the_ledger_is_lost_what_is_there_is_found_there_and_proven_not_sent(folder: Path, disk: Path) -> None:
    back_up_now(folder, disk)
    paths = seen(folder).paths
    before = {(one.iteration, one.what, one.of) for one in read_backups(paths)}
    inodes = {path: path.stat().st_ino for path in disk.rglob("layer_*")}
    paths.backups.unlink()
    assert back_up_now(folder, disk).problems == []
    assert {(one.iteration, one.what, one.of) for one in read_backups(paths)} == before
    assert {path: path.stat().st_ino for path in disk.rglob("layer_*")} == inodes


def test_a_ledger_that_the_disk_does_not_take_loses_nothing(
    folder: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = seen(folder).paths
    paths.backups.symlink_to("/dev/full")  # refused as a link: the same to us as a disk that takes nothing
    with pytest.raises(OpsctlError, match=r"backups\.jsonl\b.*\blink"):
        back_up_now(folder, disk)
    paths.backups.unlink()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opsctl.transfer.sending.checkpoint.record", full)
    done = back_up_now(folder, disk)
    assert len(done.lines) == len(done.problems) == 4 and all(str(paths.backups) in one for one in done.problems)
    monkeypatch.undo()
    assert read_backups(paths) == []
    assert len(back_up_now(folder, disk).lines) == 4 and len(read_backups(paths)) == 4


def test_a_destination_of_another_run_is_refused(folder: Path, tmp_path: Path, disk: Path) -> None:
    back_up_now(folder, disk)
    other = a_run(tmp_path / "other", 20)
    with pytest.raises(OpsctlError, match=r"\btiny\b"):
        back_up_now(other, disk)
    assert whole_there(disk).keys() == {f"checkpoints/global_step{one}" for one in (20, 40)} | {
        f"weights/global_step{one}" for one in (10, 30)
    }


def test_a_second_one_at_the_same_time_is_refused_and_two_disks_are_two(folder: Path, disk: Path) -> None:
    with destination(folder, disk) as place, place.turn():
        assert forked(lambda: back_up_now(folder, disk)) == 1
        assert forked(lambda: _is_refused(folder, disk)) == 0
    assert back_up_now(folder, disk).problems == []


def _is_refused(folder: Path, disk: Path) -> None:
    with pytest.raises(OpsctlError, match=r"\btiny\b"):
        back_up_now(folder, disk)


def test_what_is_damaged_here_is_not_sent_and_keeps_no_other_back(folder: Path, disk: Path) -> None:
    spoilt = folder / "output" / "checkpoints" / "global_step40" / "layer_01-model_00-model_states.pt"
    spoilt.write_bytes(spoilt.read_bytes()[:-1] + b"!")
    done = back_up_now(folder, disk)
    assert [one.iteration for one in done.lines] == [30, 20, 10]
    assert len(done.problems) == 1 and "has checksum" in done.problems[0] and "layer_01" in done.problems[0]
    assert "checkpoints/global_step40" not in whole_there(disk)
    spoilt.unlink()
    assert [one.iteration for one in back_up_now(folder, disk).lines] == []


def test_a_checkpoint_without_optimizer_states_here_is_called_nothing_else_there(folder: Path, disk: Path) -> None:
    manifest = json.loads((folder / "output" / "checkpoints" / "global_step40" / "manifest.json").read_text())
    save(folder, 60, layout={**manifest["layout"], "optimizer": "none"})
    back_up_now(folder, disk)
    assert "weights/global_step60" in whole_there(disk) and "checkpoints/global_step60" not in whole_there(disk)


def test_retention_that_waits_for_ever_is_said(folder: Path) -> None:
    said = never_whole(BackupTable(full_every=50), seen(folder))
    assert "until_backed_up = 20" in said and "full_every = 50" in said
    assert never_whole(TABLE, seen(folder)) == "" and never_whole(BackupTable(full_every=0), seen(folder))


def test_killed_at_any_step_nothing_half_is_called_whole_and_the_next_one_goes_on(tmp_path: Path, disk: Path) -> None:
    folder, steps = a_run(tmp_path / "run", 10, 20, to=disk), 0
    for steps in killed_at_every_step(lambda: back_up_now(folder, disk)):
        for name, files in whole_there(disk).items():
            assert files >= (FILES if name.startswith("checkpoints") else WEIGHTS), f"half of one after step {steps}"
            check_checksums(disk / name, read_manifest(disk / name))
        backed_up = {one.kept.iteration for one in plan_prune(seen(folder)).seen if one.backed_up}
        assert backed_up <= {20} and (not backed_up or "checkpoints/global_step20" in whole_there(disk))
        if steps % 3 == 0:
            shutil.rmtree(disk)
            disk.mkdir()
            seen(folder).paths.backups.unlink(missing_ok=True)
    assert steps > 10 and len(whole_there(disk)) == 2
    assert not list(disk.rglob(".opsctl-part-*"))
