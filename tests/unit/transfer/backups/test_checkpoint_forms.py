"""Checkpoints that lie as one tar each, beside those that lie file by file."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from opsctl.jobs.control.prune import plan_prune
from opsctl.run.checkpoints.backups import What, read_backups
from opsctl.transfer.backups.json_output import VerifiedBackups, backup_table
from opsctl.transfer.backups.remote_layout import TAR, TAR_INDEX
from opsctl.transfer.backups.restore_checkpoint import choose, restore_to_folder
from opsctl.transfer.backups.verify import Sample, verify
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.urls import open_store
from opsctl.transfer.sending.checkpoint import Sent
from tests.killed_in_python import killed_at_every_step
from tests.unit.jobs.control.checkpoint_runs import save, seen
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import (
    TABLE,
    a_run,
    back_up_now,
    contents,
    destination,
    goes,
    whole_there,
)
from trainer.formats.checkpoint.manifest import fault_of

disk = backed_up_runs.disk
IN_TAR = msgspec.structs.replace(TABLE, tar=True)
LAYER, STATES = "layer_01-model_00-model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"
OF_TAR = {TAR, TAR_INDEX, "manifest.json", "backup.json"}
OF_FILES = {LAYER, STATES, "manifest.json", "backup.json"}


@pytest.fixture
def folder(tmp_path: Path, disk: Path) -> Path:
    return a_run(tmp_path / "run", 10, 20, 30, 40, 50, 60, to=disk)


def in_tar(folder: Path, disk: Path) -> Sent:
    return back_up_now(folder, disk, IN_TAR)


def verify_now(folder: Path, disk: Path, sample: Sample | None = None) -> VerifiedBackups:
    with destination(folder, disk) as place:
        return verify(place, sample, lambda _line: None)


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "output" / "checkpoints" / f"global_step{step}"


def unpacked(there: Path, to: Path) -> dict[str, bytes]:
    """Return what tar itself makes of it."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    subprocess.run(["tar", "-xf", there / TAR, "-C", to], check=True)
    shutil.copy(there / "manifest.json", to)
    return contents(to)


def _turned(file: Path, at: int = 600) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def _short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _gone(file: Path) -> None:
    file.unlink()


def test_each_checkpoint_is_one_tar_that_tar_itself_opens_and_comes_back_whole(
    folder: Path, disk: Path, tmp_path: Path
) -> None:
    assert in_tar(folder, disk).problems == []
    lying = whole_there(disk)
    assert len(lying) == 6 and all(names == OF_TAR for names in lying.values())
    assert unpacked(disk / "checkpoints" / "global_step20", tmp_path / "out") == contents(checkpoint(folder, 20))
    assert set(unpacked(disk / "weights" / "global_step10", tmp_path / "out")) == {LAYER, "manifest.json"}
    assert in_tar(folder, disk).lines == []
    with open_store(str(disk)) as store:
        done = restore_to_folder(store, choose(store, 20, False), tmp_path / "back", Flow())
        assert contents(Path(done.folder)) == contents(checkpoint(folder, 20))
        light = restore_to_folder(store, choose(store, 40, weights_only=True), tmp_path / "light", Flow())
        assert set(contents(Path(light.folder))) == {LAYER, "manifest.json"} and fault_of(Path(light.folder)) is None


def test_a_single_file_is_fetched_by_its_range_alone(folder: Path, disk: Path, tmp_path: Path) -> None:
    in_tar(folder, disk)
    with open_store(str(disk)) as store:
        chosen, asked, read = choose(store, 20, False), [], store.pieces

        def noted(name: str, begin: int, end: int | None) -> Iterator[memoryview]:
            asked.append((Path(name).name, (end or 1 << 60) - begin))
            return read(name, begin, end)

        store.pieces = noted  # type: ignore[method-assign]
        one = b"".join(map(bytes, chosen.found.source(store, LAYER).chunks()))
    assert one == (checkpoint(folder, 20) / LAYER).read_bytes()
    assert [size for name, size in asked if name == TAR] == [len((checkpoint(folder, 20) / LAYER).read_bytes())]


def test_a_place_has_both_kinds_and_both_are_listed_verified_relied_on_and_found_again(
    folder: Path, disk: Path
) -> None:
    back_up_now(folder, disk)
    for step in (70, 80, 90, 100):
        save(folder, step)
    assert [one.iteration for one in in_tar(folder, disk).lines] == [100, 90, 80, 70]
    assert whole_there(disk)["checkpoints/global_step40"] == OF_FILES
    assert whole_there(disk)["checkpoints/global_step80"] == OF_TAR
    paths, wanted = seen(folder).paths, goes(folder)
    assert {20, 40, 60, 80} <= set(wanted)
    table = backup_table(read_backups(paths))
    assert [("tar" in line) for step in ("40 ", "80 ") for line in table if line.startswith(step)] == [False, True]

    before = {(one.key, one.of, one.form) for one in read_backups(paths)}
    paths.backups.unlink()
    done = verify_now(folder, disk)
    assert (done.lost, done.problems, done.backups) == ([], [], 10)
    assert {(one.key, one.of, one.form) for one in read_backups(paths)} == before and goes(folder) == wanted
    paths.backups.unlink()
    in_tar(folder, disk)  # proves what is there, in the form that the key names now
    assert goes(folder) == wanted and verify_now(folder, disk).lost == []


@pytest.mark.parametrize(
    ("spoil", "name", "table"),
    [
        *((_gone, TAR, IN_TAR), (_gone, TAR_INDEX, TABLE), (_gone, "manifest.json", IN_TAR)),
        *((_short, TAR, TABLE), (_short, TAR_INDEX, IN_TAR), (_short, "manifest.json", TABLE)),
        *((_turned, TAR, IN_TAR), (_turned, TAR_INDEX, TABLE), (_turned, "manifest.json", IN_TAR)),
    ],
    ids=lambda value: getattr(value, "__name__", None) or (value if isinstance(value, str) else f"tar={value.tar}"),
)
def test_what_is_lost_of_a_tar_no_longer_counts_and_is_sent_again_as_the_key_says_now(
    folder: Path, disk: Path, spoil: Callable[[Path], None], name: str, table: object, tmp_path: Path
) -> None:
    in_tar(folder, disk)
    there = disk / "checkpoints" / "global_step20"
    assert 20 in goes(folder)
    if spoil is _turned and name != TAR:
        (there / name).write_bytes((there / name).read_bytes().replace(b'"bytes":', b'"bytes":9', 1))
    else:
        spoil(there / name)
    assert [(one.iteration, one.what) for one in verify_now(folder, disk).lost] == [(20, What.FULL)]
    assert 20 not in goes(folder)
    assert [one.iteration for one in back_up_now(folder, disk, table).lines] == [20]  # type: ignore[arg-type]
    assert whole_there(disk)["checkpoints/global_step20"] == (OF_TAR if table is IN_TAR else OF_FILES)
    assert verify_now(folder, disk).lost == [] and 20 in goes(folder)
    if table is IN_TAR:
        assert unpacked(there, tmp_path / "out") == contents(checkpoint(folder, 20))


def test_what_was_lost_file_by_file_is_sent_again_as_a_tar_and_leaves_no_files(folder: Path, disk: Path) -> None:
    back_up_now(folder, disk)
    _turned(disk / "checkpoints" / "global_step20" / LAYER, 3)
    assert len(verify_now(folder, disk).lost) == 1
    assert [one.iteration for one in in_tar(folder, disk).lines] == [20]
    assert whole_there(disk)["checkpoints/global_step20"] == OF_TAR and verify_now(folder, disk).lost == []


def test_a_sample_reads_single_files_of_a_tar_and_finds_what_is_wrong_within_a_round(folder: Path, disk: Path) -> None:
    in_tar(folder, disk)
    _turned(disk / "checkpoints" / "global_step40" / TAR)
    rounds = [verify_now(folder, disk, Sample(5, day)) for day in range(5)]
    assert sum(one.files for one in rounds) == 9
    assert {line.iteration for one in rounds for line in one.lost} == {40} and 40 not in goes(folder)


def test_an_index_of_another_save_makes_no_whole_one(folder: Path, disk: Path) -> None:
    in_tar(folder, disk)
    there = disk / "checkpoints" / "global_step20"
    for name in (TAR, TAR_INDEX):
        shutil.copy(disk / "checkpoints" / "global_step40" / name, there / name)
    (lost,) = verify_now(folder, disk).lost
    assert lost.iteration == 20 and 20 not in goes(folder)


def test_another_save_takes_the_place_of_a_tar(folder: Path, disk: Path, tmp_path: Path) -> None:
    in_tar(folder, disk)
    save(folder, 20, loss=1.5)
    save(folder, 60)
    assert 20 in {one.iteration for one in in_tar(folder, disk).lines}
    assert unpacked(disk / "checkpoints" / "global_step20", tmp_path / "out") == contents(checkpoint(folder, 20))


@pytest.mark.parametrize("before", [None, TABLE], ids=["nothing_there", "files_there"])
def test_killed_at_any_step_what_has_a_manifest_is_whole(tmp_path: Path, disk: Path, before: object) -> None:
    folder, steps = a_run(tmp_path / "run", 20, to=disk), 0
    if before is not None:
        back_up_now(folder, disk)
        _turned(disk / "checkpoints" / "global_step20" / STATES, 3)
        verify_now(folder, disk)
    wanted = contents(checkpoint(folder, 20))
    for steps in killed_at_every_step(lambda: in_tar(folder, disk)):
        if any(one.backed_up for one in plan_prune(seen(folder)).seen):
            assert unpacked(disk / "checkpoints" / "global_step20", tmp_path / "out") == wanted, steps
    assert steps > 5 and whole_there(disk) == {"checkpoints/global_step20": OF_TAR}
    assert unpacked(disk / "checkpoints" / "global_step20", tmp_path / "out") == wanted
    assert not list(disk.rglob(".opsctl-part-*"))
