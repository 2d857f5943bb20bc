"""A repository is one run's: what the sync of another one hears, and what it leaves alone."""

from __future__ import annotations

import json
import shutil

import pytest

from opsctl.run.config.file_kinds import KINDS
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.identity import bind
from opsctl.transfer.hub.hub_errors import RetryPolicy
from opsctl.transfer.hub.place import NOTE, Outcome
from opsctl.transfer.hub.settings import HubSettings
from opsctl.transfer.hub.sync import sync
from tests.unit.transfer.hub.sent import REPO, Desk, desk

__all__ = ["desk"]
LOG = "logs/main_log.txt"


def submitted(paths: RunPaths, run_id: str) -> RunPaths:
    """As the first submit leaves it."""
    paths.state.mkdir(exist_ok=True)
    bind(paths, run_id)
    return paths


def sync_of(desk: Desk, paths: RunPaths, name: str = "tiny") -> Outcome:
    """The sync of another folder with the same [hub]."""
    return sync(paths, name, HubSettings(desk.table), KINDS, RetryPolicy(600.0, sleep=desk.waited.append))


def restored(desk: Desk, folder: str = "copy") -> RunPaths:
    """Return what `restore --as copy` leaves: the run's files and ledgers, without its identity."""
    shutil.copytree(desk.paths.output, desk.folder / folder)
    paths = RunPaths(desk.folder / folder)
    for path in (paths.run_id, paths.identity):
        path.unlink(missing_ok=True)
    paths.main_log.write_bytes(b"another log\n")
    return paths


def note(desk: Desk, repo: str = REPO) -> dict[str, object]:
    found: dict[str, object] = json.loads(desk.hub.content(repo, NOTE))
    return found


@pytest.mark.parametrize(("how", "own_id"), [("folder", ""), ("branch", "0123456789abcdef")])
def test_a_restored_copy_sends_nothing_to_its_originals_repositories(desk: Desk, how: str, own_id: str) -> None:
    submitted(desk.paths, "fedcba9876543210")
    desk.asks(checkpoints=how, checkpoints_repo="lab/weights")
    desk.checkpoint(10, {"w.pt": b"weights"})
    assert not desk.sync().left
    copy = restored(desk)
    if own_id:
        submitted(copy, own_id)
    manifest = copy.checkpoints / "global_step10" / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    desk.fresh()
    left = sync_of(desk, copy).left
    own = f"the id {own_id}" if own_id else "no id"
    for said, repo in zip(left, (REPO, "lab/weights"), strict=True):
        assert f"{repo} " in said and "tiny (id fedcba9876543210)" in said and own in said
        assert "[hub]" in said and f" {NOTE} " in said
    assert desk.hub.asked("preupload", "put", "commit", "branch") == []
    assert desk.downloaded()[LOG] == b"first line\nsecond line\n"
    desk.asks(repo="lab/of-copy", checkpoints_repo="lab/weights-of-copy")
    assert not sync_of(desk, copy).left and desk.hub.content("lab/of-copy", LOG) == b"another log\n"


def test_a_copied_folder_is_no_run_of_its_own_yet(desk: Desk) -> None:
    submitted(desk.paths, "fedcba9876543210")
    desk.sync()
    shutil.copytree(desk.paths.output, desk.folder / "copy")
    copy = RunPaths(desk.folder / "copy")
    copy.main_log.write_bytes(b"another log\n")
    desk.fresh()
    (said,) = sync_of(desk, copy).left
    assert "copy" in said and str(desk.paths.output) in said and desk.hub.requests == []


def test_the_first_submit_and_another_repository_for_a_kind_are_said_with_the_next_commit(desk: Desk) -> None:
    desk.sync()
    assert (note(desk)["run"], note(desk)["run_id"]) == ("tiny", "")
    submitted(desk.paths, "fedcba9876543210")
    desk.asks(checkpoints="branch", checkpoints_repo="lab/weights")
    desk.fresh()
    assert desk.sync().commits == [] and desk.hub.requests == [], "nothing has changed, and no request is made"
    desk.write(LOG, b"first line\nsecond line\nthird line\n")
    assert len(desk.sync().commits) == 1 and len(desk.hub.commits(REPO)) == 2
    assert note(desk)["run_id"] == "fedcba9876543210"
    own = dict.fromkeys(("logs", "tensorboard", "carbon", "report"), REPO)
    assert note(desk)["repos"] == {**own, "checkpoints": "lab/weights"}
    assert note(desk)["checkpoints"] == "branch"


@pytest.mark.parametrize("damaged", [b"", b"{", b"[" * 100_000])
def test_where_nobody_can_tell_whose_it_is_nothing_goes(desk: Desk, damaged: bytes) -> None:
    desk.hub.make_repo(REPO)
    desk.hub.commit(REPO, {NOTE: damaged})
    assert f"{REPO}: its {NOTE} " in desk.sync().left[0] and desk.files_there() == set()
