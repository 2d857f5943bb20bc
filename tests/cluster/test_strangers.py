"""Test what other Unix accounts can do to a run and to those who look at it: members of its group, and everybody
else.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.revisions import newest, publish
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster
from tests.tiny_run import expand, write_run
from tests.users import as_user

GROUP = f"octeam{os.getpid()}"


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def opsctl(local_cluster: RunningCluster, folder: Path) -> Opsctl:
    return Opsctl(local_cluster, folder)


@pytest.fixture
def people(unix_user: Callable[..., str]) -> tuple[str, str, str]:
    """The run's owner, a member of its group, and an account outside."""
    return unix_user("ann", groups_of=[GROUP]), unix_user("ben", groups_of=[GROUP]), unix_user("eve")


def submitted(opsctl: Opsctl, user: str, group: str = GROUP) -> RunPaths:
    """The user's run, with a chain that waits for tomorrow."""
    write_run(opsctl.folder, group=group)
    answer = opsctl.says(user, "submit", "--begin", "now+1day")
    assert answer.code == 0, answer.err
    return RunPaths(opsctl.folder / "output")


def thesis_of(user: str, folder: Path) -> Path:
    """A private file of the user's, elsewhere."""

    def write() -> None:
        (folder / f"home-{user}").mkdir(mode=0o755)
        path = folder / f"home-{user}" / "thesis.txt"
        path.write_text("years of work\n")
        path.chmod(0o600)

    as_user(user, write)
    return folder / f"home-{user}" / "thesis.txt"


def unharmed(thesis: Path) -> bool:
    modes = stat.S_IMODE(thesis.stat().st_mode), stat.S_IMODE(thesis.parent.stat().st_mode)
    return thesis.read_text() == "years of work\n" and modes == (0o600, 0o755)


def test_without_a_group_nobody_publishes_reads_or_stops_anothers_run(
    opsctl: Opsctl, people: tuple[str, str, str]
) -> None:
    ann, _, eve = people
    paths = submitted(opsctl, ann, group="")
    run = load_run_file(opsctl.folder / "run.toml")
    with pytest.raises(Exception, match="ermission denied"):
        as_user(eve, lambda: publish(expand(run)))
    for words in (["revise"], ["submit"], ["kill-switch", "trigger", "--no-wait"], ["kill-switch", "arm"]):
        answer = opsctl.says(eve, *words)
        assert answer.code in (1, 2) and "Traceback" not in answer.err, (words, answer)
        assert len(answer.err.strip().splitlines()) == 1, (words, answer.err)
    assert not paths.kill_switch.exists() and len(opsctl.revisions()) == 1
    assert opsctl.says(ann, "status").code == 0


def test_a_members_planted_links_lead_nowhere(opsctl: Opsctl, people: tuple[str, str, str]) -> None:
    ann, ben, _ = people
    paths = submitted(opsctl, ann)
    thesis = thesis_of(ann, opsctl.folder)

    def planted(path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.rename(path.with_name("aside"))
        path.symlink_to(thesis.parent if (path.with_name("aside")).is_dir() else thesis)

    def put_back(path: Path) -> None:
        path.unlink()
        with contextlib.suppress(FileNotFoundError):
            path.with_name("aside").rename(path)

    words = {
        paths.lock: ["submit", "--begin", "now+1day", "--after", "auto"],
        paths.main_log: ["watch", "training"],
        paths.chains: ["status"],
        paths.run_id: ["cancel", "--queued"],
        paths.attempts: ["attempts"],
        paths.revisions: ["revise"],
        paths.state: ["status"],
        paths.logs: ["watch", "training"],
    }
    for path, command in words.items():
        as_user(ben, functools.partial(planted, path))
        try:
            answer = opsctl.says(ann, *command)
            assert "Traceback" not in answer.err, (path, answer.err)
            assert str(path) in answer.err, (path, command, answer)
            assert "link" in answer.err and "remove it" in answer.err, (path, answer.err)
            assert len(answer.err.strip().splitlines()) <= 2, (path, answer.err)
            assert unharmed(thesis), path
        finally:
            as_user(ben, functools.partial(put_back, path))


def test_what_a_member_writes_about_the_kill_switch_opens_and_removes_nothing_elsewhere(
    opsctl: Opsctl, people: tuple[str, str, str]
) -> None:
    ann, ben, _ = people
    paths = submitted(opsctl, ann)
    thesis = thesis_of(ann, opsctl.folder)
    said = json.dumps({"path": str(thesis), "armed_by": ann, "armed_at": "2026-11-22T00:00:00+00:00"})
    as_user(ben, lambda: (paths.state / "kill-switch.json").write_text(said))
    for words in (["arm"], ["status"], ["trigger", "--no-wait"], ["deactivate"]):
        answer = opsctl.says(ann, "kill-switch", *words)
        assert "Traceback" not in answer.err and unharmed(thesis), (words, answer)
    assert not paths.kill_switch.exists()


def test_who_published_is_told_by_whose_files_they_are(opsctl: Opsctl, people: tuple[str, str, str]) -> None:
    ann, ben, eve = people
    paths = submitted(opsctl, ann)
    run_file = write_run(opsctl.folder, group=GROUP, lr="2e-3")
    assert opsctl.says(ben, "revise").code == 0
    revision = newest(paths)
    assert revision is not None and revision.created_by.startswith(ben)
    os.chown(revision.folder / "step.sh", pwd.getpwnam(eve).pw_uid, -1)
    answer = opsctl.says(ann, "revise", str(run_file))
    assert "Traceback" not in answer.err
    assert "published by " + ann not in answer.err


def test_nobody_outside_can_hold_a_lock_that_others_wait_for(opsctl: Opsctl, people: tuple[str, str, str]) -> None:
    ann, _, eve = people
    paths = submitted(opsctl, ann)
    opsctl.says(ann, "watch", "training")
    locks = []
    for path in (*paths.state.rglob("*"), *paths.logs.rglob("*")):
        if path.is_file():

            def held(path: Path = path) -> bool:
                with contextlib.suppress(PermissionError):
                    fcntl.lockf(os.open(path, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)
                    return True
                return False

            locks.append(path)
            assert not as_user(eve, held), path
    assert paths.lock in locks and paths.main_log in locks


def test_a_log_line_waits_for_nobody(opsctl: Opsctl, people: tuple[str, str, str]) -> None:
    ann, _, _ = people
    paths = submitted(opsctl, ann)
    opsctl.says(ann, "watch", "training")
    with paths.main_log.open("r+") as held:
        fcntl.lockf(held, fcntl.LOCK_EX)
        assert opsctl.says(ann, "watch", "training").code == 0
    assert paths.main_log.read_text().count("PULSE") == 2
