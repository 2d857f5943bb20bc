"""A run with checkpoints and a destination on another file system."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.jobs.control.prune import Done, plan_prune, prune
from opsctl.run.config.schema import BackupTable
from opsctl.run.state.identity import make_run_id
from opsctl.transfer.backups.destination import Destination, Wish, back_up
from opsctl.transfer.backups.verify import prove
from opsctl.transfer.object_store.flow import Flow
from opsctl.transfer.object_store.urls import open_store
from opsctl.transfer.sending.checkpoint import Sent
from tests.unit.jobs.control.checkpoint_runs import care_run, save, seen

TABLE = BackupTable(full_every=20, weights_every=10)


RETENTION = "last = 2\nfull_percent = 0\nuntil_backed_up = 20"


def a_run(folder: Path, *iterations: int, to: Path | str | None = None) -> Path:
    """A published run with whole checkpoints, whose [backup] names `to`; its folder."""
    care_run(folder, RETENTION, backed_up_to=to)
    make_run_id(seen(folder).paths)
    for iteration in iterations:
        save(folder, iteration)
    return folder


@contextlib.contextmanager
def another_disk() -> Iterator[Path]:
    """A folder on another file system than the tests' own."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="opsctl-backup-"))
    try:
        assert folder.stat().st_dev != Path(tempfile.gettempdir()).stat().st_dev
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def destination(folder: Path, to: Path | str) -> Iterator[Destination]:
    run = seen(folder)
    with open_store(str(to)) as store:
        yield Destination(run.paths, run.table.name, str(to), store, Flow())


def back_up_now(folder: Path, to: Path | str, table: BackupTable = TABLE, wish: Wish | None = None) -> Sent:
    with destination(folder, to) as place:
        return back_up(place, table, wish or Wish(), lambda _line: None)


def prune_now(folder: Path) -> Done:
    """Prune, with the destinations asked before."""
    return prune(seen(folder), lambda _line: None, lambda lines: prove(lines, lambda to: destination(folder, to)))


def goes(folder: Path) -> list[int]:
    """Iterations that may go, as the ledger has it."""
    return [one.kept.iteration for one in plan_prune(seen(folder)).going]


def whole_there(to: Path) -> dict[str, set[str]]:
    """Return what lies there with a manifest: folder -> names."""
    return {
        str(path.parent.relative_to(to)): {one.name for one in path.parent.iterdir()}
        for path in to.glob("*/global_step*/manifest.json")
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {str(one.relative_to(folder)): one.read_bytes() for one in sorted(folder.rglob("*")) if one.is_file()}


def edit_manifest(folder: Path, **values: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.fixture
def disk() -> Iterator[Path]:
    with another_disk() as folder:
        yield folder


def forked(act: object) -> int:
    """Have another process do it; its exit code."""
    child = os.fork()
    if not child:
        code = 1
        try:
            act()  # type: ignore[operator]
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
