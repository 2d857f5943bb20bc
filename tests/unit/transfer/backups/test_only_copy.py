"""Test what would let a prune take the last copy there is: places that are none, proofs that are none."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.jobs.control.prune import plan_prune
from opsctl.run.checkpoints.backups import read_backups, record
from opsctl.run.config.load import load_run_file
from opsctl.run.state.revisions import publish
from opsctl.transfer.backups import destination as destinations
from opsctl.transfer.backups import remote_layout
from opsctl.transfer.backups.destination import Wish
from opsctl.transfer.backups.restore_checkpoint import choose, restore_to_run
from opsctl.transfer.backups.verify import prove, verify
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.store import Store
from opsctl.transfer.object_store.urls import open_store
from tests.s3_server import Fault, Proxy
from tests.tiny_run import ready
from tests.unit.jobs.control.checkpoint_runs import seen, there
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import (
    a_run,
    back_up_now,
    contents,
    destination,
    edit_manifest,
    goes,
    prune_now,
    whole_there,
)

disk = backed_up_runs.disk
WEIGHTS = "layer_01-model_00-model_states.pt"


@pytest.fixture
def folder(tmp_path: Path, disk: Path) -> Path:
    return a_run(tmp_path / "run", 10, 20, 30, 40, 50, 60, to=disk)


@pytest.mark.parametrize("below", ["output", "output/backup", "output/checkpoints", "../linked"])
def test_a_place_that_is_the_run_itself_is_no_other_place(folder: Path, below: str) -> None:
    to = folder / below
    if below == "../linked":
        to = folder.parent / "linked"
        to.symlink_to(folder / "output")
    to.mkdir(exist_ok=True)
    before = contents(folder / "output" / "checkpoints")
    with pytest.raises(OpsctlError, match=r"output|linked"):
        back_up_now(folder, to)
    assert contents(folder / "output" / "checkpoints") == before
    assert read_backups(seen(folder).paths) == [] and 20 not in goes(folder)


def test_what_an_object_store_turned_is_sent_again_though_its_note_says_it_is_right(
    tmp_path: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    url = f"s3://{bucket}/tiny"
    folder = a_run(tmp_path / "run", 20, 30, 40, to=url)
    assert back_up_now(folder, url).problems == []
    key = f"tiny/checkpoints/global_step20/{WEIGHTS}"
    there = s3.get_object(Bucket=bucket, Key=key)
    data = bytearray(there["Body"].read())
    was = bytes(data)
    data[7] ^= 1
    s3.put_object(Bucket=bucket, Key=key, Body=bytes(data), Metadata=there["Metadata"])
    with destination(folder, url) as place:
        assert [one.iteration for one in verify(place, None, lambda _: None).lost] == [20]
    assert 20 not in goes(folder)
    assert [one.iteration for one in back_up_now(folder, url).lines] == [20]
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == was


def test_a_lost_ledger_proves_nothing_that_an_object_store_has_turned(
    tmp_path: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    url = f"s3://{bucket}/tiny"
    folder = a_run(tmp_path / "run", 20, to=url)
    assert back_up_now(folder, url).problems == []
    key = f"tiny/checkpoints/global_step20/{WEIGHTS}"
    there = s3.get_object(Bucket=bucket, Key=key)
    was = there["Body"].read()
    s3.put_object(Bucket=bucket, Key=key, Body=bytes(len(was)), Metadata=there["Metadata"])
    seen(folder).paths.backups.unlink()
    back_up_now(folder, url)
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == was


def test_another_runs_copy_is_never_replaced_though_nothing_says_whose_place_it_is(
    folder: Path, tmp_path: Path, disk: Path
) -> None:
    assert back_up_now(folder, disk).problems == []
    (disk / "backup.json").unlink()
    other = a_run(tmp_path / "other", 20, 30, 40)
    edit_manifest(other / "output" / "checkpoints" / "global_step20", saved_by="other")
    before = contents(disk / "checkpoints" / "global_step20")
    done = back_up_now(other, disk)
    assert any("global_step20" in one for one in done.problems), done
    assert contents(disk / "checkpoints" / "global_step20") == before


def test_under_an_empty_mount_point_nothing_is_written(folder: Path, disk: Path) -> None:
    assert back_up_now(folder, disk).problems == []
    for one in disk.iterdir():
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    with pytest.raises(OpsctlError, match="mounted"):
        back_up_now(folder, disk, wish=Wish((30,)))
    assert list(disk.iterdir()) == []
    with destination(folder, disk) as place:
        assert {one.iteration for one in verify(place, None, lambda _: None).lost} == {10, 20, 30, 40, 50, 60}
    with pytest.raises(OpsctlError, match="mounted"):
        back_up_now(folder, disk)
    assert 20 not in goes(folder)
    assert len(back_up_now(folder, disk, wish=Wish(emptied=True)).lines) == 6


def test_another_runs_checkpoint_does_not_come_into_this_run(folder: Path, tmp_path: Path, disk: Path) -> None:
    assert back_up_now(folder, disk).problems == []
    other = a_run(tmp_path / "other", 10)
    paths = seen(other).paths
    with open_store(str(disk)) as store, pytest.raises(OpsctlError, match="--into"):
        restore_to_run(store, choose(store, 20, False), paths, "tiny", Flow())
    assert not (paths.checkpoints / "global_step20").exists()


def test_a_good_copy_stays_until_what_is_to_take_its_place_was_read(folder: Path, disk: Path) -> None:
    assert back_up_now(folder, disk).problems == []
    here = folder / "output" / "checkpoints" / "global_step20"
    edit_manifest(here, saved_by="another save")
    data = bytearray((here / WEIGHTS).read_bytes())
    data[7] ^= 1
    (here / WEIGHTS).write_bytes(data)
    before = contents(disk / "checkpoints" / "global_step20")
    assert back_up_now(folder, disk).problems
    assert contents(disk / "checkpoints" / "global_step20") == before
    assert "checkpoints/global_step20" in whole_there(disk)


def flip_a_byte(path: Path) -> None:
    """Change the content, and neither the size nor the time of the last change."""
    data, at = bytearray(path.read_bytes()), path.stat().st_mtime_ns
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(at, at))


def _lose_a_file(copy: Path) -> None:
    (copy / WEIGHTS).unlink()


def _lose_it_all(copy: Path) -> None:
    shutil.rmtree(copy)


def _cut_a_file(copy: Path) -> None:
    (copy / WEIGHTS).write_bytes(b"short")


def _be_another_save(copy: Path) -> None:
    edit_manifest(copy, saved_by="another save")


@pytest.mark.parametrize("lose", [_lose_a_file, _lose_it_all, _cut_a_file, _be_another_save])
def test_what_a_place_has_lost_since_it_said_it_has_it_is_not_removed_here(
    folder: Path, disk: Path, lose: Callable[[Path], None]
) -> None:
    assert back_up_now(folder, disk).problems == [] and {20, 40} <= set(goes(folder))
    lose(disk / "checkpoints" / "global_step20")
    done = prune_now(folder)
    assert there(folder) == [20, 50, 60] and 40 in done.removed
    (problem,) = done.problems
    assert problem.startswith(f"global_step20 in {disk}: ")
    (stays,) = next(one.reasons for one in done.plan.verdicts if one.iteration == 20)
    assert "20" in stays and str(disk) in stays
    assert prune_now(folder).removed == ()  # on record now: no one is asked again
    assert [one.iteration for one in back_up_now(folder, disk).lines] == [20]
    assert prune_now(folder).removed == (20,)


@pytest.mark.parametrize("has_marks", [True, False])
def test_a_damaged_copy_of_the_right_size_does_not_let_prune_take_the_last_good_one(
    folder: Path, disk: Path, has_marks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_marks:  # as of a store that tells neither times nor checksums
        for module in (remote_layout, destinations):
            monkeypatch.setattr(module, "state_of", lambda *_: "")
    assert back_up_now(folder, disk).problems == []
    flip_a_byte(disk / "checkpoints" / "global_step20" / WEIGHTS)
    done = prune_now(folder)
    assert 20 in there(folder) and 40 in done.removed
    assert [line.iteration for line in read_backups(seen(folder).paths) if line.lost] == [20]
    assert [one.iteration for one in back_up_now(folder, disk).lines] == [20]
    assert prune_now(folder).removed == (20,)


def test_a_damaged_object_of_the_right_size_does_not_let_prune_take_the_last_good_copy(
    tmp_path: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    url = f"s3://{bucket}/tiny"
    folder = a_run(tmp_path / "run", 20, 40, 50, 60, to=url)
    assert back_up_now(folder, url, wish=Wish((20, 40))).problems == []
    key = f"tiny/checkpoints/global_step20/{WEIGHTS}"
    was = s3.get_object(Bucket=bucket, Key=key)
    s3.put_object(Bucket=bucket, Key=key, Body=b"!" + was["Body"].read()[1:], Metadata=was["Metadata"])
    assert prune_now(folder).removed == (40,) and 20 in there(folder)


def test_a_copy_is_read_once_for_its_proof_and_again_only_after_a_change(
    folder: Path, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert back_up_now(folder, disk).problems == []
    read: list[str] = []
    monkeypatch.setattr(Store, "check", _counting(Store.check, read))
    lines = {line.iteration: line for line in read_backups(seen(folder).paths)}
    long_ago = now() - timedelta(days=9)
    record(seen(folder).paths, [replace(lines[20], proof="", verified_at=long_ago)])  # as an earlier release wrote it
    for _ in range(2):
        with destination(folder, disk) as place:
            assert set(prove(plan_prune(seen(folder)).relied_on, lambda _: contextlib.nullcontext(place)).values()) == {
                ""
            }
        assert read == ["checkpoints/global_step20"]
    (proven,) = [line for line in read_backups(seen(folder).paths) if line.iteration == 20]
    assert proven.proof and proven.verified_at and proven.verified_at > long_ago
    os.utime(disk / "checkpoints" / "global_step40" / WEIGHTS)
    assert prune_now(folder).removed == (10, 20, 30, 40)
    assert read == ["checkpoints/global_step20", "checkpoints/global_step40"]


def _counting(check: Callable[..., Any], read: list[str]) -> Callable[..., Any]:
    def counted(store: Any, files: Any, prefix: str, flow: Any) -> Any:
        read.append(prefix)
        return check(store, files, prefix, flow)

    return counted


def test_one_place_that_has_it_is_enough_and_what_the_other_has_lost_is_said(
    folder: Path, disk: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    run_file = folder / "run.toml"
    run_file.write_text(run_file.read_text().replace(f'["{disk}"]', f'["{other}/", "{disk}"]'))
    publish(ready(load_run_file(run_file)))
    for to in (disk, other):
        assert back_up_now(folder, to).problems == []
    _lose_a_file(other / "checkpoints" / "global_step20")
    done = prune_now(folder)
    assert 20 in done.removed and len(done.problems) == 1 and str(other) in done.problems[0]


@pytest.mark.parametrize("becomes", ["away", "empty", "another's"])
def test_where_a_place_cannot_be_asked_all_stays_and_its_copies_are_not_called_lost(
    folder: Path, disk: Path, tmp_path: Path, becomes: str
) -> None:
    assert back_up_now(folder, disk).problems == []
    away = disk.rename(disk.with_name(f"{disk.name}-away"))
    if becomes != "away":
        disk.mkdir()
    if becomes == "another's":
        assert back_up_now(a_run(tmp_path / "other", 20), disk).problems == []
    done = prune_now(folder)
    assert {20, 40} <= set(there(folder)) and done.removed == (10, 30)
    assert all(str(disk) in one for one in done.problems) and len(done.problems) == 2
    assert all(line.counts for line in read_backups(seen(folder).paths))
    shutil.rmtree(disk, ignore_errors=True)
    away.rename(disk)
    assert prune_now(folder).removed == (20, 40)


def test_an_object_store_is_asked_by_listings_and_what_it_has_lost_stays_here(
    tmp_path: Path, proxy: Proxy, bucket: str, s3: Any
) -> None:
    url = f"s3://{bucket}/tiny"
    folder = a_run(tmp_path / "run", 20, 40, 50, 60, to=url)
    assert back_up_now(folder, url, wish=Wish((20, 40))).problems == []
    s3.delete_object(Bucket=bucket, Key=f"tiny/checkpoints/global_step20/{WEIGHTS}")
    proxy.requests.clear()
    done = prune_now(folder)
    assert done.removed == (40,) and WEIGHTS in done.problems[0]
    assert not proxy.count("[.]pt") and len(proxy.requests) < 12  # no file is read
    assert back_up_now(folder, url).problems == []
    proxy.faults.append(Fault("list-type", "answer", 100, 403, "AccessDenied"))  # in the middle of the questions
    (problem,) = prune_now(folder).problems
    assert url in problem and there(folder) == [20, 50, 60]
    assert all(line.counts for line in read_backups(seen(folder).paths))
    proxy.faults.clear()
    assert prune_now(folder).removed == (20,)


def test_a_copy_whose_place_is_not_named_any_more_is_none_for_prune(folder: Path, disk: Path, tmp_path: Path) -> None:
    assert back_up_now(folder, disk).problems == [] and 20 in goes(folder)
    run_file = folder / "run.toml"
    named = run_file.read_text()
    for written in (named.replace(str(disk), str(tmp_path)), named.replace(f'[backup]\nto = ["{disk}"]', "")):
        run_file.write_text(written)
        assert 20 in goes(folder)  # what is published counts
        publish(ready(load_run_file(run_file)))
        verdict = plan_prune(seen(folder)).verdicts[1]
        (reason,) = verdict.reasons
        assert str(disk) in reason and "[backup] to" in reason
        assert prune_now(folder).removed in ((10, 30), ()) and 20 in there(folder)
        run_file.write_text(named)
        publish(ready(load_run_file(run_file)))
    assert prune_now(folder).removed == (20, 40)


def test_what_comes_on_record_after_the_question_was_not_asked_for(folder: Path, disk: Path) -> None:
    assert back_up_now(folder, disk).problems == []
    verdict = plan_prune(seen(folder), {}).verdicts[1]
    assert verdict.iteration == 20 and str(disk) in verdict.reasons[0]


def test_what_was_put_on_record_since_the_question_is_not_called_lost(folder: Path, disk: Path) -> None:
    assert back_up_now(folder, disk, wish=Wish((20,))).problems == []
    (line,) = plan_prune(seen(folder)).relied_on
    record(seen(folder).paths, [replace(line, verified_at=line.verified_at and line.verified_at + timedelta(hours=1))])
    _lose_a_file(disk / "checkpoints" / "global_step20")
    assert prove([line], lambda to: destination(folder, to))[line]
    assert all(one.counts for one in read_backups(seen(folder).paths))
