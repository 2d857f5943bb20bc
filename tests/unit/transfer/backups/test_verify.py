"""Reading again what is there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.checkpoints.backups import What, read_backups
from opsctl.transfer.backups.json_output import VerifiedBackups
from opsctl.transfer.backups.run_files import back_up_rest
from opsctl.transfer.backups.verify import Sample, verify
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.types import StoreError
from tests.unit.jobs.control.checkpoint_runs import save, seen
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import (
    TABLE,
    a_run,
    back_up_now,
    destination,
    goes,
    whole_there,
)
from trainer.formats.json_text import json_line

disk = backed_up_runs.disk


@pytest.fixture
def folder(tmp_path: Path, disk: Path) -> Path:
    found = a_run(tmp_path / "run", 10, 20, 30, 40, 50, 60, to=disk)
    assert back_up_now(found, disk).problems == []
    return found


def verify_now(folder: Path, disk: Path, sample: Sample | None = None) -> VerifiedBackups:
    with destination(folder, disk) as place:
        return verify(place, sample, lambda _line: None)


def _gone(file: Path) -> None:
    file.unlink()


def _short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _turned(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("spoil", [_gone, _short, _turned])
@pytest.mark.parametrize("name", ["zero_pp_rank_0_mp_rank_00_optim_states.pt", "manifest.json"])
def test_what_a_destination_loses_after_it_took_it_no_longer_counts_and_is_sent_again(
    folder: Path, disk: Path, spoil: Callable[[Path], None], name: str
) -> None:
    assert 20 in goes(folder)
    spoil(disk / "checkpoints" / "global_step20" / name)
    done = verify_now(folder, disk)
    assert [(one.iteration, one.what) for one in done.lost] == [(20, What.FULL)]
    assert 20 not in goes(folder)
    assert [one.iteration for one in back_up_now(folder, disk).lines] == [20]
    assert verify_now(folder, disk).lost == [] and 20 in goes(folder)


def test_samples_find_it_within_a_round_and_never_let_it_count_before(folder: Path, disk: Path) -> None:
    _turned(disk / "checkpoints" / "global_step40" / "layer_01-model_00-model_states.pt")
    files = sum(len(names) - 2 for names in whole_there(disk).values())
    rounds = [verify_now(folder, disk, Sample(4, day)) for day in range(4)]
    assert sum(one.files for one in rounds) == files
    assert {line.iteration for one in rounds for line in one.lost} == {40} and 40 not in goes(folder)


def test_a_sample_proves_nothing_whole_that_was_not_and_all_of_it_does(folder: Path, disk: Path) -> None:
    seen(folder).paths.backups.unlink()
    verify_now(folder, disk, Sample(4, 0))
    lines = read_backups(seen(folder).paths)
    assert len(lines) == 6 and not any(line.counts for line in lines) and 20 not in goes(folder)
    verify_now(folder, disk)
    assert all(line.counts for line in read_backups(seen(folder).paths)) and 20 in goes(folder)


def test_a_destination_that_lost_all_is_said_line_by_line(folder: Path, disk: Path) -> None:
    shutil.rmtree(disk / "checkpoints")
    done = verify_now(folder, disk)
    assert {one.iteration for one in done.lost} == {20, 40, 60} and done.backups == 3
    assert all(f"global_step{one.iteration}" in (one.lost or "") for one in done.lost)


def test_a_backup_of_what_is_no_longer_here_stays_on_record(folder: Path, disk: Path) -> None:
    shutil.rmtree(folder / "output" / "checkpoints" / "global_step20")
    seen(folder).paths.backups.unlink()
    verify_now(folder, disk)
    assert (20, What.FULL) in {(one.iteration, one.what) for one in read_backups(seen(folder).paths)}
    save(folder, 70)
    assert [one.iteration for one in back_up_now(folder, disk).lines] == [70]


def test_logs_and_records_that_a_destination_turned_are_found_and_sent_again(folder: Path, disk: Path) -> None:
    paths = seen(folder).paths
    paths.logs.mkdir(exist_ok=True)
    (paths.logs / "main_log.txt").write_text("iteration 1\n")
    with destination(folder, disk) as place:
        back_up_rest(place, TABLE, None)
    (there,) = disk.glob("rest/*/output/logs/main_log.txt")
    assert verify_now(folder, disk).lost == []
    _turned(there)
    (lost,) = verify_now(folder, disk).lost
    assert lost.what == What.REST and "main_log.txt" in (lost.lost or "")
    with destination(folder, disk) as place:
        assert back_up_rest(place, TABLE, None).files
    assert verify_now(folder, disk).lost == []
    shutil.rmtree(disk / "rest")
    assert [one.what for one in verify_now(folder, disk).lost] == [What.REST]


def test_what_was_found_before_the_store_broke_down_is_on_record(
    folder: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _turned(disk / "checkpoints" / "global_step20" / "layer_01-model_00-model_states.pt")
    check = Store.check

    def breaks_down(self: Store, files: Any, prefix: str = "", *more: Any, **named: Any) -> Any:
        if prefix == "checkpoints/global_step40":
            raise StoreError("the store is down")
        return check(self, files, prefix, *more, **named)

    monkeypatch.setattr(Store, "check", breaks_down)
    for sample in (None, Sample(1, 0)):
        with pytest.raises(StoreError):
            verify_now(folder, disk, sample)
        assert 20 not in goes(folder)


def test_a_store_that_breaks_down_while_it_is_listed_has_lost_nothing(
    folder: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_backups(seen(folder).paths)
    read = Store.read

    def breaks_down(self: Store, name: str, *more: Any) -> bytes:
        if "global_step40" in name:
            raise StoreError("the store is down")
        return read(self, name, *more)

    monkeypatch.setattr(Store, "read", breaks_down)
    with pytest.raises(StoreError):
        verify_now(folder, disk)
    assert read_backups(seen(folder).paths) == before


def test_a_loss_that_cannot_be_put_on_record_counts_all_the_same(
    folder: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _turned(disk / "checkpoints" / "global_step20" / "layer_01-model_00-model_states.pt")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opsctl.transfer.backups.verify.record", full)
    assert any("not recorded" in one for one in verify_now(folder, disk).problems)
    assert 20 not in goes(folder)


def test_another_runs_copies_are_not_put_on_record(folder: Path, disk: Path, tmp_path: Path) -> None:
    other = a_run(tmp_path / "other", 10)
    with pytest.raises(OpsctlError, match="another run"):
        verify_now(other, disk)
    assert read_backups(seen(other).paths) == []


def test_a_copy_without_its_manifest_is_lost_or_a_problem(folder: Path, disk: Path) -> None:
    for step in (20, 40):
        (disk / "checkpoints" / f"global_step{step}" / "manifest.json").unlink()
    paths = seen(folder).paths
    lines = [line for line in read_backups(paths) if line.iteration != 40]
    paths.backups.write_text("".join(f"{json_line(line)}\n" for line in lines))  # as if 40 had been cut off
    found = verify_now(folder, disk)
    (lost,) = found.lost
    (problem,) = found.problems
    assert lost.iteration == 20 and "manifest.json" in (lost.lost or "")
    assert "checkpoints/global_step40" in problem and "manifest.json" in problem
