"""Sending one checkpoint while others work on it, and to a server that fails."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control.rollback import rollback
from opsctl.run.checkpoints.backups import What, read_backups
from opsctl.run.config.schema import BackupTable
from opsctl.transfer.backups.destination import Destination, Wish, back_up
from opsctl.transfer.backups.restore_checkpoint import choose, restore_to_folder
from opsctl.transfer.backups.restore_run import Asked, restore_run
from opsctl.transfer.backups.run_files import back_up_rest
from opsctl.transfer.backups.verify import verify
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.urls import open_store
from opsctl.transfer.sending.checkpoint import Sent
from tests.s3_server import Fault, Proxy
from tests.unit.jobs.control.checkpoint_runs import save, seen
from tests.unit.transfer.backups import backed_up_runs
from tests.unit.transfer.backups.backed_up_runs import TABLE, a_run, back_up_now, contents, goes, prune_now, whole_there
from trainer.formats.checkpoint.manifest import check_checksums, fault_of, read_manifest

disk = backed_up_runs.disk


@pytest.fixture
def folder(tmp_path: Path, disk: Path) -> Path:
    return a_run(tmp_path / "run", 10, 20, 30, 40, to=disk)


def back_up_while(folder: Path, disk: Path, act: Callable[[], object], named: int = 20) -> Sent:
    """Send one checkpoint, and do something while its first file is being read."""
    run, left = seen(folder), [act]

    def reached(_done: int) -> None:
        if left and (disk / "checkpoints" / f"global_step{named}" / "backup.json").exists():
            left.pop()()

    with open_store(str(disk)) as store:
        place = Destination(run.paths, "tiny", str(disk), store, Flow(None, reached))
        done = back_up(place, TABLE, Wish((named,)), lambda _line: None)
    assert not left
    return done


def nothing_half_is_whole(disk: Path) -> None:
    for name in whole_there(disk):
        assert fault_of(disk / name) is None
        check_checksums(disk / name, read_manifest(disk / name))


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "output" / "checkpoints" / f"global_step{step}"


def test_prune_leaves_what_is_being_sent(folder: Path, disk: Path) -> None:
    save(folder, 50)
    save(folder, 60)
    assert 10 in goes(folder)
    done = back_up_while(folder, disk, lambda: prune_now(folder), named=10)
    assert done.problems == [] and checkpoint(folder, 10).is_dir() and not checkpoint(folder, 30).exists()
    prune_now(folder)
    assert not checkpoint(folder, 10).exists()


def _remove(folder: Path) -> None:
    shutil.rmtree(checkpoint(folder, 20))


def _save_again(folder: Path) -> None:
    shutil.rmtree(checkpoint(folder, 20))
    save(folder, 20, loss=2.5)


def _publish_again(folder: Path) -> None:
    """As the trainer does: the new one takes the name in one step, and the old one, still whole, another."""
    checkpoint(folder, 20).rename(folder / "output" / "checkpoints" / ".tmp-replaced-global_step20")
    save(folder, 20, loss=2.5)


def _shrink(folder: Path) -> None:
    for path in checkpoint(folder, 20).glob("*.pt"):
        os.truncate(path, 3)


def _roll_back(folder: Path) -> None:
    rollback(seen(folder).paths, "tiny", 10, "", lambda *_: ())


@pytest.mark.parametrize("act", [_remove, _save_again, _publish_again, _shrink])
def test_what_changes_while_it_is_sent_is_never_called_whole(
    folder: Path, disk: Path, act: Callable[[Path], None]
) -> None:
    done = back_up_while(folder, disk, lambda: act(folder))
    assert len(done.problems) == 1 and done.lines == []
    assert "checkpoints/global_step20" not in whole_there(disk)
    assert not any(line.counts for line in read_backups(seen(folder).paths))
    assert back_up_now(folder, disk).problems == []
    nothing_half_is_whole(disk)
    if act in (_save_again, _publish_again):
        assert "checkpoints/global_step20" in whole_there(disk)


def test_one_that_a_rollback_sets_aside_is_sent_or_refused_but_not_in_part(folder: Path, disk: Path) -> None:
    done = back_up_while(folder, disk, lambda: _roll_back(folder))
    assert len(done.lines) + len(done.problems) == 1
    nothing_half_is_whole(disk)


def test_another_save_takes_the_place_of_one_that_is_there_and_killed_in_between_neither_counts(
    folder: Path, disk: Path
) -> None:
    back_up_now(folder, disk)
    save(folder, 20, loss=2.5)
    done = back_up_while(folder, disk, lambda: _remove(folder))
    assert len(done.problems) == 1 and "checkpoints/global_step20" not in whole_there(disk)
    (line,) = [one for one in read_backups(seen(folder).paths) if (one.iteration, one.what) == (20, What.FULL)]
    assert line.lost and not line.counts


def test_names_that_are_no_words_come_back_as_they_were(folder: Path, disk: Path, tmp_path: Path) -> None:
    hostile = ("--all-runs", "a b", "$(touch x)", "ünïcödé", "'\"")
    path = checkpoint(folder, 40)
    manifest = json.loads((path / "manifest.json").read_text())
    kept = manifest["files"]["layer_01-model_00-model_states.pt"]
    for name in hostile:
        shutil.copy(path / "layer_01-model_00-model_states.pt", path / name)
        manifest["files"][name] = kept
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert back_up_now(folder, disk).problems == []
    with open_store(str(disk)) as store:
        restore_to_folder(store, choose(store, 40, False), tmp_path / "back", Flow())
    assert contents(tmp_path / "back" / "global_step40") == contents(path)


def keys(s3: Any, bucket: str) -> dict[str, bytes]:
    found = s3.list_objects_v2(Bucket=bucket).get("Contents", [])
    return {one["Key"]: s3.get_object(Bucket=bucket, Key=one["Key"])["Body"].read() for one in found}


def test_a_run_goes_to_s3_and_comes_back_though_the_server_fails_and_loses_a_file(
    folder: Path, proxy: Proxy, bucket: str, s3: Any, tmp_path: Path
) -> None:
    url = f"s3://{bucket}/runs/tiny"
    proxy.faults += [Fault("PUT /.*layer", "answer", status=503), Fault("PUT /.*zero", "cut request")]
    assert back_up_now(folder, url).problems == []
    here, there = contents(checkpoint(folder, 20)), keys(s3, bucket)
    prefix = "runs/tiny/checkpoints/global_step20/"
    assert {one.removeprefix(prefix): data for one, data in there.items() if one.startswith(prefix)}.items() >= (
        here.items()
    )
    asked = len(proxy.requests)
    assert back_up_now(folder, url).lines == [] and len(proxy.requests) - asked < 5

    lost = f"{prefix}zero_pp_rank_0_mp_rank_00_optim_states.pt"
    s3.delete_object(Bucket=bucket, Key=lost)
    run = seen(folder)
    with open_store(url) as store:
        place = Destination(run.paths, "tiny", url, store, Flow())
        assert [(one.iteration, one.what) for one in verify(place, None, lambda _: None).lost] == [(20, What.FULL)]
        assert [one.iteration for one in back_up(place, TABLE, Wish(), lambda _: None).lines] == [20]
        assert verify(place, None, lambda _: None).lost == []
        back_up_rest(place, BackupTable(), folder / "run.toml")
    assert keys(s3, bucket)[lost] == here["zero_pp_rank_0_mp_rank_00_optim_states.pt"]

    shutil.rmtree(folder)
    with open_store(url) as store:
        restore_run(store, tmp_path / "back", Asked(step=20, stands_as="same"), Flow(), lambda _: None)
    assert contents(checkpoint(tmp_path / "back", 20)) == here
    with open_store(url) as store, pytest.raises(OpsctlError, match="has no global_step99"):
        choose(store, 99, False)
