"""A sync that goes to a git server, from the run file to a clone; and which token goes where."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.run.config.schema import HubTable
from opsctl.transfer.hub.ledger import Sent, add_to_ledger
from opsctl.transfer.hub.remotes import open_remote
from opsctl.transfer.hub.retry_policy import Patience
from opsctl.transfer.hub.settings import HubSettings
from tests.git_server import TOKEN, GitServer, git, git_server
from tests.hub_server import TOKEN as HUB_TOKEN
from tests.hub_server import Fault
from tests.unit.transfer.hub.sent import Desk, desk

__all__ = ["desk"]
REPO = "lab/run"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    with git_server(tmp_path / "git-server") as served:
        served.make_repo(REPO)
        yield served


@pytest.fixture
def git_desk(desk: Desk, server: GitServer) -> Desk:
    """The run, with a run file that sends it to the git server, and a token in a file of one's own."""
    secret = desk.folder / "run" / "token"
    secret.touch(mode=0o600)
    secret.write_text(TOKEN + "\n")
    run_file = desk.folder / "run" / "run.toml"
    text = run_file.read_text().replace(f'repo = "{REPO}"', f'repo = "{server.url(REPO)}"\ntoken = "file:token"')
    run_file.write_text(text)
    run_file.chmod(0o600)
    return desk


def sync(desk: Desk, *words: str) -> subprocess.CompletedProcess[str]:
    return desk.opsctl("sync", *(words or ("all",)))


def test_a_sync_to_a_git_server_is_a_sync_like_any(git_desk: Desk, server: GitServer) -> None:
    git_desk.checkpoint(10, {"w.pt": b"weights"})
    done = sync(git_desk)
    assert done.returncode == 0, done.stderr
    clone = server.clone(REPO, git_desk.folder / "clone")
    assert (clone / "checkpoints" / "global_step10" / "w.pt").read_bytes() == b"weights"
    found = server.contents(REPO)
    assert found["logs/main_log.txt"] == b"first line\nsecond line\n"
    assert json.loads(found["checkpoints/global_step10/manifest.json"])["iteration"] == 10
    server.requests.clear()
    assert sync(git_desk).returncode == 0 and server.asked() == [], "nothing had changed"
    looked = git_desk.opsctl("status")
    assert looked.returncode == 0, looked.stdout + looked.stderr
    assert TOKEN not in done.stdout + done.stderr + looked.stdout
    state = [path for path in git_desk.paths.output.rglob("*") if path.is_file()]
    assert not [path for path in state if TOKEN.encode() in path.read_bytes()]


def test_what_goes_here_stays_there_unless_it_is_to_go(git_desk: Desk, server: GitServer) -> None:
    log = git_desk.write("logs/old.txt", b"line\n")
    curve = git_desk.write("tensorboard/events.out.tfevents.2.node", b"curve")
    run_file = git_desk.folder / "run" / "run.toml"
    run_file.write_text(run_file.read_text() + 'mirror = ["tensorboard"]\n')
    assert sync(git_desk).returncode == 0
    log.unlink()
    curve.rename(curve.with_name("events.out.tfevents.3.node"))
    assert sync(git_desk).returncode == 0
    found = server.contents(REPO)
    assert "logs/old.txt" in found
    assert {name for name in found if "tfevents" in name} == {
        "tensorboard/events.out.tfevents.1.node",
        "tensorboard/events.out.tfevents.3.node",
    }
    assert git(server.git_folder(REPO), "log", "--format=%s", "-1", "main").count("\n") == 1


def test_a_token_taken_back_in_the_middle_is_a_line_and_nothing_is_lost(git_desk: Desk, server: GitServer) -> None:
    server.faults.append(Fault("receive", "call", after=1, call=lambda _: setattr(server, "token", "another")))
    done = sync(git_desk, "logs")
    assert done.returncode == 1 and "(401)" in done.stdout + done.stderr
    assert "[hub] token" in done.stdout + done.stderr and TOKEN not in done.stdout + done.stderr
    (git_desk.folder / "run" / "token").write_text("another")
    assert sync(git_desk, "logs").returncode == 0
    assert server.contents(REPO)["logs/main_log.txt"] == b"first line\nsecond line\n"


def test_a_hub_token_taken_back_in_the_middle_is_a_line_and_nothing_is_lost(desk: Desk) -> None:
    accounts = dict(desk.hub.accounts)
    desk.hub.faults.append(Fault("commit", "revoke"))
    done = desk.opsctl("sync", "logs")
    assert done.returncode == 1 and "(401)" in done.stdout + done.stderr
    assert "opsctl hub login" in done.stdout + done.stderr and HUB_TOKEN not in done.stdout + done.stderr
    desk.hub.faults.clear()
    desk.hub.accounts.update(accounts)
    assert desk.opsctl("sync", "logs").returncode == 0
    assert desk.downloaded()["logs/main_log.txt"] == b"first line\nsecond line\n"


def settings_of(desk: Desk, url: str, **more: object) -> HubSettings:
    run_file = desk.folder / "run" / "run.toml"
    return HubSettings(HubTable(repo=url, **more), run_file, {"repo": run_file})  # type: ignore[arg-type]


def test_the_hubs_token_goes_to_no_other_server(desk: Desk, server: GitServer) -> None:
    (desk.folder / "run" / "run.toml").chmod(0o600)
    with pytest.raises(OpsctlError, match=r"no token for .*file:PATH"):
        open_remote(settings_of(desk, server.url(REPO)), server.url(REPO), Patience(5.0))
    own = f"{desk.hub.endpoint}/lab/run.git"
    assert open_remote(settings_of(desk, own), own, Patience(5.0)).name == own
    assert server.asked() == []


def test_a_run_file_that_others_can_change_says_not_where_a_token_goes(git_desk: Desk, server: GitServer) -> None:
    run_file = git_desk.folder / "run" / "run.toml"
    profile = git_desk.folder / "profile.toml"
    profile.touch(mode=0o600)
    (git_desk.folder / "token").touch(mode=0o600)
    (git_desk.folder / "token").write_text(TOKEN)
    run_file.chmod(0o666)
    named = dataclasses.replace(settings_of(git_desk, server.url(REPO), token="file:token"), token_from=profile)
    with pytest.raises(OpsctlError, match=f"{run_file} .*{re.escape(server.url(REPO))}"):
        open_remote(named, server.url(REPO), Patience(5.0))
    run_file.chmod(0o600)
    assert open_remote(named, server.url(REPO), Patience(5.0)).name == server.url(REPO)


def test_a_url_that_only_the_ledger_names_gets_no_token(git_desk: Desk, server: GitServer) -> None:
    assert sync(git_desk, "logs").returncode == 0
    with git_server(git_desk.folder / "theirs") as theirs:
        theirs.make_repo(REPO)
        add_to_ledger(git_desk.paths, [Sent(repo=theirs.url(REPO), revision="main", path="logs/x", sha256="0" * 64)])
        assert git_desk.opsctl("status").returncode == 0
        assert theirs.asked() == []
        (git_desk.folder / "run" / "token").touch()
        settings = settings_of(git_desk, server.url(REPO), token="file:token")
        with pytest.raises(OpsctlError, match="does not name"):
            open_remote(settings, theirs.url(REPO), Patience(5.0))


@pytest.mark.parametrize(
    ("repo", "said"),
    [
        ("https://ann:hunter22@host/lab/run.git", "password"),
        ("http://host/lab/run.git", "over https"),
        ("https://host", "no repository"),
        ("https://host/a?token=hunter22", "no options"),
    ],
)
def test_a_run_file_with_such_a_url_is_refused(desk: Desk, repo: str, said: str) -> None:
    run_file = desk.folder / "run" / "run.toml"
    run_file.write_text(run_file.read_text().replace(f'repo = "{REPO}"', f'repo = "{repo}"'))
    done = desk.opsctl("check")
    assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
    assert "hunter22" not in done.stderr
