"""Logs and records, snapshot by snapshot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opsctl.run.config.schema import BackupTable
from opsctl.run.state.identity import read_run_id
from opsctl.transfer.backups.remote_layout import NOTE
from opsctl.transfer.backups.run_files import KEPT, Kept, Snapshot, back_up_rest, newest_snapshot, numbers_there
from opsctl.transfer.object_store.urls import open_store
from tests.killed_in_python import killed_at_every_step
from tests.unit.jobs.control.checkpoint_runs import seen
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import a_run, contents, destination

disk = backed_up_runs.disk
HOSTILE = "--help and a\nnew line"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = a_run(tmp_path / "run", 10)
    paths = seen(found).paths
    paths.logs.mkdir()
    paths.main_log.write_text("iteration 1\n")
    (paths.logs / HOSTILE).write_text("odd")
    (paths.logs / "linked").symlink_to("/etc/passwd")
    os.mkfifo(paths.logs / "pipe")
    paths.tensorboard.mkdir()
    (paths.tensorboard / "events.1").write_bytes(b"curve")
    paths.codecarbon.mkdir()
    (paths.codecarbon / "emissions-1-x-2.csv").write_text("energy")
    return found


def snapshot_now(folder: Path, disk: Path, **table: bool) -> Kept:
    with destination(folder, disk) as place:
        return back_up_rest(place, BackupTable(**table), folder / "run.toml")  # type: ignore[arg-type]


def newest(disk: Path) -> Snapshot:
    with open_store(str(disk)) as store:
        found = newest_snapshot(store, numbers_there(store))
    assert found is not None
    return found


def test_all_but_checkpoints_and_what_is_of_the_moment_is_there_as_it_was(folder: Path, disk: Path) -> None:
    paths = seen(folder).paths
    for name in ("lock", "submitting.json", "lease.jsonl"):
        (paths.state / name).write_text("of the moment")
    done = snapshot_now(folder, disk)
    assert done.problems == [] and done.snapshot == newest(disk)
    there = {name: (disk / "rest" / file.at).read_bytes() for name, file in newest(disk).files.items()}
    output = contents(folder / "output")
    wanted = {
        f"output/{name}": data
        for name, data in output.items()
        if not name.startswith("checkpoints/") and "linked" not in name and data != b"of the moment"
    }
    wanted = {name: data for name, data in wanted.items() if not name.endswith(".lock") and "backups.jsonl" not in name}
    assert there == {**wanted, "run/run.toml": (folder / "run.toml").read_bytes()}
    assert f"output/logs/{HOSTILE}" in there and newest(disk).run_id == read_run_id(paths)


def test_locks_and_what_is_half_written_stay_out_wherever_they_are(folder: Path, disk: Path) -> None:
    paths = seen(folder).paths
    for above in (paths.state / "requests", paths.state / "hub.sending", paths.logs, paths.set_aside / "0001"):
        above.mkdir(parents=True, exist_ok=True)
        for name in (
            "files.lock",
            ".status.json.node1.77.ab12cd34.tmp",
            ".nfs000000001",
            ".opsctl-part-1",
            "kept.json",
        ):
            (above / name).write_text("{}")
    snapshot_now(folder, disk)
    names = {Path(name).name for name in newest(disk).files}
    assert "kept.json" in names and "main_log.txt" in names
    assert not [name for name in names if name.endswith((".lock", ".tmp")) or name.startswith(".nfs")]
    assert not [name for name in newest(disk).files if "hub.sending" in name], "who sends now"


def test_what_an_earlier_look_has_of_locks_is_not_kept_in_the_next(folder: Path, disk: Path) -> None:
    snapshot_now(folder, disk)
    snapshot = max((disk / "rest").glob("*.json"))
    log = '"output/logs/main_log.txt":'
    assert log in snapshot.read_text()
    snapshot.write_text(snapshot.read_text().replace(log, '"output/logs/old.lock":'))
    snapshot_now(folder, disk)
    assert "output/logs/main_log.txt" in newest(disk).files and "output/logs/old.lock" not in newest(disk).files


def test_nothing_is_sent_twice_and_nothing_where_nothing_is_new(folder: Path, disk: Path) -> None:
    snapshot_now(folder, disk)
    assert snapshot_now(folder, disk).snapshot is None
    with seen(folder).paths.main_log.open("a") as file:
        file.write("iteration 2\n")
    done = snapshot_now(folder, disk)
    assert done.files == 1 and done.snapshot is not None and done.snapshot.number == 2
    assert newest(disk).files["output/logs/main_log.txt"].at == "2/output/logs/main_log.txt"
    assert newest(disk).files["output/tensorboard/events.1"].at == "1/output/tensorboard/events.1"


def test_what_somebody_removed_here_stays_there_but_state_is_as_it_is(folder: Path, disk: Path) -> None:
    paths = seen(folder).paths
    paths.kill_switch.write_text("{}")
    snapshot_now(folder, disk)
    (paths.tensorboard / "events.1").unlink()
    paths.kill_switch.unlink()
    snapshot_now(folder, disk)
    assert "output/tensorboard/events.1" in newest(disk).files and "output/kill-switch" not in newest(disk).files


def test_old_looks_go_with_what_only_they_name(folder: Path, disk: Path) -> None:
    for number in range(1, KEPT + 3):
        seen(folder).paths.main_log.write_text(f"{number}\n" * number)
        snapshot_now(folder, disk)
    with open_store(str(disk)) as store:
        assert numbers_there(store) == list(range(3, KEPT + 3))
    lying = {str(path.relative_to(disk / "rest")) for path in (disk / "rest").glob("*/**/*") if path.is_file()}
    assert "2/output/logs/main_log.txt" not in lying and "1/output/tensorboard/events.1" in lying


def test_each_kind_can_be_left_out(folder: Path, disk: Path) -> None:
    snapshot_now(folder, disk, logs=False, state=False)
    assert set(newest(disk).files) == {"output/tensorboard/events.1", "output/codecarbon/emissions-1-x-2.csv"}
    assert (disk / NOTE).is_file()


def test_killed_at_any_step_the_newest_look_is_whole(folder: Path, disk: Path) -> None:
    steps = 0
    snapshot_now(folder, disk)
    for steps in killed_at_every_step(lambda: _changed_and_looked(folder, disk)):
        for name, file in newest(disk).files.items():
            assert (disk / "rest" / file.at).stat().st_size == file.bytes, f"{name} after step {steps}"
    assert steps > 5


def _changed_and_looked(folder: Path, disk: Path) -> None:
    log = seen(folder).paths.main_log
    log.write_text(log.read_text() + "more\n")
    assert snapshot_now(folder, disk).snapshot is not None
