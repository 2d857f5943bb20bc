"""What would let a prune take the last copy there is: places that are none, proofs that are none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.backups.checkpoints import Wish
from opsctl.backups.restoring import choose, restore_to_run
from opsctl.backups.verifying import verify
from opsctl.checkpoints.backups import read_backups
from opsctl.control.prune import plan_prune
from opsctl.errors import OpsctlError
from opsctl.stores.flow import Flow
from opsctl.stores.opening import open_store
from tests.s3_server import ENVIRONMENT, client, s3_server
from tests.unit.backups import backed_up_runs
from tests.unit.backups.backed_up_runs import a_run, back_up_now, contents, destination, edit_manifest, whole_there
from tests.unit.control.checkpoint_runs import seen

disk = backed_up_runs.disk
WEIGHTS = "layer_01-model_00-model_states.pt"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return a_run(tmp_path / "run", 10, 20, 30, 40, 50, 60)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    with s3_server() as endpoint:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        s3 = client(endpoint)
        s3.create_bucket(Bucket="only")
        yield "only", s3


def goes(folder: Path) -> list[int]:
    return [one.kept.iteration for one in plan_prune(seen(folder)).going]


@pytest.mark.parametrize("below", ["output", "output/backup", "output/checkpoints", "../linked"])
def test_a_place_that_is_the_run_itself_is_no_other_place(folder: Path, below: str) -> None:
    to = folder / below
    if below == "../linked":
        to = folder.parent / "linked"
        to.symlink_to(folder / "output")
    to.mkdir(exist_ok=True)
    before = contents(folder / "output" / "checkpoints")
    with pytest.raises(OpsctlError, match=r"the run's own folder"):
        back_up_now(folder, to)
    assert contents(folder / "output" / "checkpoints") == before
    assert read_backups(seen(folder).paths) == [] and 20 not in goes(folder)


def test_what_an_object_store_turned_is_sent_again_though_its_note_says_it_is_right(
    folder: Path, bucket: tuple[str, Any]
) -> None:
    name, s3 = bucket
    url = f"s3://{name}/tiny"
    assert back_up_now(folder, url).problems == []
    key = f"tiny/checkpoints/global_step20/{WEIGHTS}"
    there = s3.get_object(Bucket=name, Key=key)
    data = bytearray(there["Body"].read())
    was = bytes(data)
    data[7] ^= 1
    s3.put_object(Bucket=name, Key=key, Body=bytes(data), Metadata=there["Metadata"])
    with destination(folder, url) as place:
        assert [one.iteration for one in verify(place, None, lambda _: None).lost] == [20]
    assert 20 not in goes(folder)
    assert [one.iteration for one in back_up_now(folder, url).lines] == [20]
    assert s3.get_object(Bucket=name, Key=key)["Body"].read() == was


def test_a_lost_ledger_proves_nothing_that_an_object_store_has_turned(folder: Path, bucket: tuple[str, Any]) -> None:
    name, s3 = bucket
    url = f"s3://{name}/tiny"
    assert back_up_now(folder, url).problems == []
    key = f"tiny/checkpoints/global_step20/{WEIGHTS}"
    there = s3.get_object(Bucket=name, Key=key)
    was = there["Body"].read()
    s3.put_object(Bucket=name, Key=key, Body=bytes(len(was)), Metadata=there["Metadata"])
    seen(folder).paths.backups.unlink()
    back_up_now(folder, url)
    assert s3.get_object(Bucket=name, Key=key)["Body"].read() == was


def test_another_runs_copy_is_never_replaced_though_nothing_says_whose_place_it_is(
    folder: Path, tmp_path: Path, disk: Path
) -> None:
    assert back_up_now(folder, disk).problems == []
    (disk / "backup.json").unlink()
    other = a_run(tmp_path / "other", 20, 30, 40)
    edit_manifest(other / "output" / "checkpoints" / "global_step20", saved_by="other")
    before = contents(disk / "checkpoints" / "global_step20")
    done = back_up_now(other, disk)
    assert any("another run" in one for one in done.problems), done
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
    assert len(back_up_now(folder, disk, wish=Wish(anew=True)).lines) == 6


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
