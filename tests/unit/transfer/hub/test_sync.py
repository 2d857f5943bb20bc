"""Logs, curves and carbon to a hub: a real server, and the client's own download as the judge of what is there."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest

from opsctl.run.checkpoints.backups import read_hub
from opsctl.run.state.background_progress import PROGRESS_VARIABLE
from opsctl.transfer.hub.json_output import SyncedRun
from opsctl.transfer.hub.place import NOTE
from tests.hub_server import Fault
from tests.unit.transfer.hub.sent import REPO, Desk, desk

__all__ = ["desk"]
LOG = "logs/main_log.txt"
CURVES = "tensorboard/events.out.tfevents.1.node"


def test_what_was_sent_comes_back_byte_for_byte_by_the_clients_own_download(desk: Desk) -> None:
    desk.hub.part_bytes = 1 << 20
    desk.hub.lfs_from_bytes = 100_000
    files = {
        "logs/a name with  spaces.txt": b"x\n",
        "logs/with\na newline.txt": b"y\n",
        "logs/-dash": b"z\n",
        "logs/--run": b"",
        "logs/slurm/ümläut %s?#&=.out": b"\x00\xff\n",
        "logs/large.txt": random.Random(1).randbytes(3_500_000) + b"\n",
        "codecarbon/node1.csv": b"duration,energy\n1,2\n",
        CURVES: (desk.paths.output / CURVES).read_bytes(),
        LOG: (desk.paths.output / LOG).read_bytes(),
    }
    for path, content in files.items():
        desk.write(path, content)
    desk.write("codecarbon/.lock", b"no csv")
    outcome = desk.sync()
    assert not outcome.left and outcome.files == len(files)
    assert desk.downloaded() == files
    assert len(desk.hub.commits(REPO)) == 1, "one for all kinds of a repository"
    assert len(desk.sent("part")) == 4, "the large one went in parts"
    assert not desk.hub.leaked


def test_nothing_is_asked_when_nothing_changed(desk: Desk) -> None:
    desk.sync()
    desk.fresh()
    assert desk.sync().commits == []
    os.utime(desk.paths.tensorboard)  # a folder's time is no file's
    assert desk.sync().commits == [] and desk.hub.requests == []


def test_what_changed_alone_is_sent(desk: Desk) -> None:
    desk.sync()
    desk.fresh()
    desk.write(LOG, b"first line\nsecond line\nthird line\n")
    assert desk.sync().files == 1
    assert desk.sent("put") == [] and len(desk.sent("commit")) == 1
    assert desk.downloaded()[LOG].endswith(b"third line\n")


def test_a_growing_log_is_sent_by_whole_lines_and_to_its_end_once_it_rests(desk: Desk) -> None:
    place = desk.write(LOG, b"first line\nhalf a li")
    desk.sync()
    assert desk.downloaded()[LOG] == b"first line\n"
    desk.fresh()
    assert desk.sync().commits == [] and not desk.hub.requests, "half a line is no news"
    os.utime(place, (1e9, 1e9))
    desk.sync()
    assert desk.downloaded()[LOG] == b"first line\nhalf a li"


def test_each_kind_may_have_a_repository_of_its_own(desk: Desk) -> None:
    desk.asks(tensorboard_repo="lab/curves").sync()
    assert desk.files_there() == {LOG}
    assert set(desk.hub.files("lab/curves")) == {CURVES, NOTE}
    assert desk.hub.repos["lab/curves"].private


def test_what_has_arrived_counts_as_progress_of_its_job(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "progress.json"
    monkeypatch.setenv(PROGRESS_VARIABLE, str(told))
    desk.sync()
    assert json.loads(told.read_text())["done"] == 1, "commits"
    told.unlink()
    desk.sync()
    assert not told.exists(), "nothing new is no progress"


def test_a_commit_has_no_more_files_than_so_many(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opsctl.transfer.hub.place.FILES_PER_COMMIT", 3)
    for number in range(7):
        desk.write(f"logs/{number}.txt", b"%d\n" % number)
    desk.sync()
    assert [len(one.files) for one in desk.hub.commits(REPO)] == [4, 7, 10], "and the note"


@pytest.mark.parametrize("what", ["info", "create", "branch", "paths", "commit"])
def test_a_server_that_says_when_is_asked_again_then(desk: Desk, what: str) -> None:
    desk.hub.faults = [
        Fault(what, status=429, headers={"Retry-After": "31"}),
        Fault(what, status=429, headers={"RateLimit": '"api";r=0;t=40'}),
        Fault(what, status=503),
    ]
    outcome = desk.sync()
    assert not outcome.left and len(desk.hub.commits(REPO)) == 1
    assert desk.waited == [31.0, 41.0, 5.0]


def test_a_time_of_day_is_read_by_the_servers_own_clock(desk: Desk) -> None:
    desk.hub.clock_skew_s = 86_400.0
    now = desk.hub.date(30)
    desk.hub.faults = [Fault("commit", status=429, headers={"Retry-After": now})]
    assert not desk.sync().left
    assert desk.waited and 25 <= desk.waited[0] <= 31


@pytest.mark.parametrize("what", ["preupload", "batch", "commit", "info"])
def test_a_server_that_wants_more_time_than_there_is_ends_the_sync_at_once(desk: Desk, what: str) -> None:
    desk.hub.faults = [Fault(what, status=429, headers={"Retry-After": "900"})]
    outcome = desk.sync(most_s=600.0)
    assert outcome.commits == [] and desk.waited == []
    (line,) = outcome.left
    assert re.search(r"2 files .*lab/run: .*\b90\d", line)
    assert not desk.sync().left and len(desk.hub.commits(REPO)) == 1


@pytest.mark.parametrize("what", ["preupload", "batch", "put", "verify"])
def test_a_bad_moment_of_the_upload_is_overcome(desk: Desk, what: str) -> None:
    desk.hub.faults = [Fault(what, status=500)]
    assert not desk.sync().left
    assert desk.downloaded()[CURVES] == (desk.paths.output / CURVES).read_bytes()


def test_an_upload_that_is_cut_in_its_middle_arrives_whole(desk: Desk) -> None:
    desk.hub.faults = [Fault("put", "cut")]
    assert not desk.sync().left
    assert desk.downloaded()[CURVES] == (desk.paths.output / CURVES).read_bytes()
    assert len(desk.hub.commits(REPO)) == 1


@pytest.mark.parametrize("does", ["lost reply", "cut"])
def test_a_commit_whose_answer_is_lost_is_looked_for_and_not_made_again(desk: Desk, does: str) -> None:
    desk.hub.faults = [Fault("commit", does)]
    outcome = desk.sync()
    (commit,) = desk.hub.commits(REPO)
    assert [one.commit for one in outcome.commits] == [commit.oid]
    assert {one.name for one in read_hub(desk.paths)} == {LOG, CURVES}


def test_a_commit_of_somebody_else_in_between_stays(desk: Desk) -> None:
    desk.hub.make_repo(REPO)

    def commit(_: object) -> None:
        desk.hub.commit(REPO, {"README.md": b"hello"})

    desk.hub.faults = [Fault("commit", "call", call=commit)]
    assert not desk.sync().left
    assert set(desk.downloaded()) == {"README.md", LOG, CURVES}
    made_on = [
        json.loads((one.body or b"").splitlines()[0])["value"]["parentCommit"] for one in desk.hub.asked("commit")
    ]
    theirs, ours = desk.hub.commits(REPO)
    assert made_on == [theirs.parent, theirs.oid] and ours.parent == theirs.oid


def test_bytes_that_change_on_the_way_are_sent_again_and_never_committed_wrong(desk: Desk) -> None:
    desk.hub.faults = [Fault("put", "wrong")]
    assert not desk.sync().left
    assert desk.downloaded()[CURVES] == (desk.paths.output / CURVES).read_bytes()


def test_a_storage_that_never_keeps_what_it_takes_is_said(desk: Desk) -> None:
    desk.hub.faults = [Fault("put", "forget", times=None), Fault("verify", "forget", times=None)]
    outcome = desk.sync()
    assert outcome.commits == [] and "lab/run" in outcome.left[0]
    assert read_hub(desk.paths) == []


def test_a_storage_that_forgets_once_what_it_acknowledged_gets_it_again(desk: Desk) -> None:
    desk.hub.faults = [Fault("put", "forget"), Fault("verify", "forget")]
    assert not desk.sync().left
    assert desk.downloaded()[CURVES] == (desk.paths.output / CURVES).read_bytes()


@pytest.mark.parametrize("lost", ["all of it", "its end"])
def test_without_its_ledger_nothing_is_sent_again(desk: Desk, lost: str) -> None:
    desk.sync()
    desk.fresh()
    ledger = desk.paths.hub_ledger
    ledger.write_bytes(b"" if lost == "all of it" else ledger.read_bytes()[:-40])
    assert not desk.sync().left
    assert desk.sent("put", "commit") == []
    desk.fresh()
    assert desk.sync().commits == [] and desk.hub.requests == []


def test_a_disk_that_is_full_at_the_ledger_loses_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> bool:
        raise OSError(28, "No space left")

    with monkeypatch.context() as patched:
        patched.setattr("opsctl.run.checkpoints.backups.append_bytes", full)
        outcome = desk.sync()
    assert not outcome.left and "no space left" in outcome.notes[0]
    desk.fresh()
    assert not desk.sync().left and desk.sent("put", "commit") == []


def test_a_file_that_shrinks_while_it_is_sent_keeps_no_other_from_going(desk: Desk) -> None:
    shrinks = desk.write("tensorboard/shrinks.tfevents", bytes(11 << 20))

    def cut(_: object) -> None:
        os.truncate(shrinks, 10)

    desk.hub.faults = [Fault("preupload", "call", call=cut)]
    outcome = desk.sync()
    (left,) = outcome.left
    assert left.startswith("tensorboard/shrinks.tfevents: ")
    assert set(desk.downloaded()) == {LOG, CURVES}
    assert not desk.sync().left
    assert desk.downloaded()["tensorboard/shrinks.tfevents"] == bytes(10)


@pytest.mark.parametrize(("where", "lines"), [("logs/over.txt", 10_000), ("tensorboard/over.tfevents", 3_000_000)])
def test_a_file_that_is_written_over_while_it_is_sent_is_never_a_mixture(desk: Desk, where: str, lines: int) -> None:
    over = desk.write(where, b"old\n" * lines)

    def again(_: object) -> None:
        with over.open("r+b") as file:
            file.write(b"new\n" * 5_000)

    desk.hub.faults = [Fault("preupload", "call", call=again)]
    outcome = desk.sync()
    if outcome.left:
        assert outcome.left[0].startswith(f"{where}: ") and where not in desk.downloaded()
    else:
        assert desk.downloaded()[where] == b"old\n" * lines
    desk.sync()
    assert desk.downloaded()[where] == over.read_bytes()


def test_a_file_that_is_replaced_while_it_is_sent_goes_as_it_was_and_then_as_it_is(desk: Desk) -> None:
    place = desk.paths.output / CURVES
    was = place.read_bytes()

    def replace(_: object) -> None:
        beside = place.with_name("beside")
        beside.write_bytes(b"another")
        beside.rename(place)

    desk.hub.faults = [Fault("preupload", "call", call=replace)]
    assert not desk.sync().left
    assert desk.downloaded()[CURVES] == was
    desk.sync()
    assert desk.downloaded()[CURVES] == b"another"


def test_what_is_removed_here_stays_there(desk: Desk) -> None:
    desk.sync()
    (desk.paths.output / CURVES).unlink()
    desk.fresh()
    assert desk.sync().commits == [] and desk.hub.requests == []
    assert set(desk.downloaded()) == {LOG, CURVES}


def test_links_and_names_that_no_repository_has_stay_here(desk: Desk, tmp_path: Path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("private\n")
    (desk.paths.logs / "link").symlink_to(secret)
    os.link(secret, desk.paths.logs / "second-name")
    desk.write("logs/.git/config", b"x\n")
    (Path(os.fsdecode(os.fsencode(desk.paths.logs) + b"/\xff\xfe"))).write_bytes(b"x\n")
    outcome = desk.sync()
    assert set(desk.downloaded()) == {LOG, CURVES}
    assert len(outcome.notes) == 2 and len(outcome.left) == 1 and outcome.left[0].startswith("logs/second-name: ")


def test_no_name_goes_that_keeps_others_from_downloading_or_cloning_the_rest(desk: Desk) -> None:
    names = ("a:b.txt", "sub/c:d.txt", "back\\slash", ".GIT/x", "git~1", ".git /x", ".Cache/x")
    for name in names:
        desk.write(f"logs/{name}", b"line\n")
    desk.write("logs/ok: so", b"line\n")
    outcome = desk.sync()
    assert set(desk.downloaded()) == {LOG, CURVES, "logs/ok: so"}
    assert len(outcome.notes) == len(names) and not outcome.left
    assert all(any(f"{'logs/' + name!a} " in note for note in outcome.notes) for name in names)


def test_a_folder_that_cannot_be_looked_into_holds_up_nothing_else(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.write("logs/closed/a.txt", b"line\n")
    desk.write("logs/gone.txt", b"line\n")
    desk.sync()
    (desk.paths.logs / "gone.txt").unlink()
    desk.write("logs/new.txt", b"line\n")
    listed = os.scandir

    def scandir(folder: str) -> object:
        if folder.endswith("closed"):  # root, who runs these tests too, may list everything
            raise PermissionError(13, "Permission denied", folder)
        return listed(folder)

    with monkeypatch.context() as closed:
        closed.setattr("os.scandir", scandir)
        outcome = desk.sync()
    (left,) = outcome.left
    assert left.startswith("logs/closed: ") and outcome.files == 1
    assert desk.files_there() == {LOG, CURVES, "logs/closed/a.txt", "logs/gone.txt", "logs/new.txt"}


def test_files_that_were_sent_are_not_called_left() -> None:
    facts: dict[str, Any] = {"run": "tr1", "bytes": 9, "commits": [], "notes": []}
    some = SyncedRun(state="left", files=30, left=["logs/a: busy", "logs/b: busy"], **facts).line
    none = SyncedRun(state="left", files=0, left=["logs/a: busy"], **facts).line
    assert "left" not in some + none and "2 not sent" in some and "sent: 30 files" in some
    assert "1 not sent" in none and "files" not in none
