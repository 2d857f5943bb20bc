from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError, UsageError
from opsctl.transfer.hub import git_remote
from opsctl.transfer.hub.file_snapshot import Changed, Moment
from opsctl.transfer.hub.git_remote import GitRemote
from opsctl.transfer.hub.hub_errors import Refused
from opsctl.transfer.hub.retry_policy import OutOfTime, Patience
from tests.git_server import TOKEN, GitServer, git, git_server
from tests.hub_server import Fault, Request

REPO = "lab/run"
LARGE = 5000  # larger goes beside git here
NAMES = ["with spaces.txt", "-n.txt", "--force", "quote\"'.txt", "new\nline.txt", "é#?*[a].txt", "a\\b.txt", ":(top)x"]
#: Both: as it is, and as it travels.
SECRETS = (TOKEN.encode(), base64.b64encode(f"opsctl:{TOKEN}".encode()))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitServer]:
    """A server with one empty repository; temporary folders of this process are the test's own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(git_remote, "LARGEST_REGULAR_BYTES", LARGE)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with git_server(tmp_path / "server") as served:
        served.make_repo(REPO)
        yield served


@pytest.fixture
def remote(server: GitServer) -> GitRemote:
    return begun(server)


def begun(server: GitServer) -> GitRemote:
    remote = opened(server)
    remote.begin("main", True)
    server.requests.clear()
    return remote


def opened(server: GitServer, most_s: float = 60.0, token: str = TOKEN) -> GitRemote:
    """Nobody sleeps: what would be waited for is asked at once."""
    return GitRemote(server.url(REPO), token, Patience(most_s, sleep=lambda _: None))


class Files:
    """Files here, as a sync has them open."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.opened = folder, contextlib.ExitStack()
        folder.mkdir()

    def moment(self, name: str, content: bytes, rested: bool = False) -> Moment:
        path = self.folder / str(len(list(self.folder.iterdir())))
        path.write_bytes(content)
        if rested:
            os.utime(path, (1, 1))
        return self.opened.enter_context(Moment(os.open(path, os.O_RDONLY)))

    def of(self, contents: dict[str, bytes], rested: bool = False) -> dict[str, Moment]:
        return {name: self.moment(name, content, rested) for name, content in contents.items()}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    made = Files(tmp_path / "files")
    with made.opened:
        yield made


def there(server: GitServer, branch: str = "main") -> dict[str, bytes]:
    """Return the files of a branch as the server stores them."""
    return {name: data for name, data in server.contents(REPO, branch).items() if name != ".gitattributes"}


def cloned(server: GitServer, tmp_path: Path, branch: str = "main") -> dict[str, bytes]:
    """What git and git-lfs themselves have of it, fetched afresh."""
    target = Path(tempfile.mkdtemp(dir=tmp_path))
    clone = server.clone(REPO, target / "clone", branch)
    paths = [path for path in clone.rglob("*") if path.is_file() and ".git" not in path.relative_to(clone).parts]
    return {str(path.relative_to(clone)): path.read_bytes() for path in paths if path.name != ".gitattributes"}


def puts(server: GitServer) -> int:
    return len(server.asked("put"))


def test_what_is_sent_is_what_git_and_git_lfs_clone(
    server: GitServer, remote: GitRemote, files: Files, tmp_path: Path
) -> None:
    contents = {"logs/main_log.txt": b"a\n" * 1000, "empty": b"", "w/large.pt": os.urandom(LARGE + 1)}
    contents |= {f"names/{name}": name.encode() for name in NAMES}
    head = remote.commit("main", files.of(contents), [], "Sync")
    assert cloned(server, tmp_path) == contents
    assert remote.head("main") == head
    assert puts(server) == 1 and not server.leaked
    listed = remote.listed("main")
    assert set(listed) == {*contents, ".gitattributes"}
    assert (listed["w/large.pt"].size, len(listed["w/large.pt"].sha256 or "")) == (LARGE + 1, 64)


@pytest.mark.parametrize("rested", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_a_large_file_of_any_name_lies_beside_git_and_is_sent_once(
    server: GitServer, remote: GitRemote, files: Files, tmp_path: Path, rested: bool
) -> None:
    contents = {
        f"w/{name}": os.urandom(8) + bytes(LARGE) for name in ("plain.pt", *(n for n in NAMES if "\n" not in n))
    }
    head = remote.commit("main", files.of(contents, rested), [], "Sync")
    assert puts(server) == len(contents)
    assert cloned(server, tmp_path) == contents
    assert opened(server).commit("main", files.of(contents, rested), [], "Sync") == head
    assert puts(server) == len(contents)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_repositorys_own_attributes_say_what_lies_beside_git(
    server: GitServer, remote: GitRemote, files: Files, tmp_path: Path
) -> None:
    remote.commit("main", files.of({".gitattributes": b"*.pt filter=lfs diff=lfs merge=lfs -text"}), [], "Rules")
    contents = {"a.pt": b"small", "b.txt": bytes(LARGE + 1), "c.txt": b"c"}
    remote.commit("main", files.of(contents), [], "Sync")
    assert puts(server) == 2
    assert cloned(server, tmp_path) == contents


def test_a_log_that_outgrows_git_goes_beside_it(
    server: GitServer, remote: GitRemote, files: Files, tmp_path: Path
) -> None:
    log = b"line\n" * (LARGE // 5)
    remote.commit("main", files.of({"log.txt": log}), [], "Sync")
    assert puts(server) == 0
    remote.commit("main", files.of({"log.txt": log + b"more\n" * 2}), [], "Sync")
    remote.commit("main", files.of({"log.txt": log + b"more\n" * 3}), [], "Sync")
    assert puts(server) == 2
    assert cloned(server, tmp_path) == {"log.txt": log + b"more\n" * 3}


def test_a_rename_is_one_commit_that_sends_no_content_again(server: GitServer, remote: GitRemote, files: Files) -> None:
    large = os.urandom(16) + bytes(LARGE)
    remote.commit("main", files.of({"old.pt": large, "stays": b"s", "goes": b"g"}), [], "Sync")
    before = git(server.git_folder(REPO), "rev-list", "--count", "main")
    remote.commit("main", files.of({"new.pt": large}), ["old.pt", "goes", "was-never-there"], "Sync")
    assert puts(server) == 1
    assert there(server) == {"new.pt": large, "stays": b"s"}
    assert int(git(server.git_folder(REPO), "rev-list", "--count", "main")) == int(before) + 1


def test_somebody_elses_push_in_between_loses_nothing_of_either(
    server: GitServer, remote: GitRemote, files: Files, tmp_path: Path
) -> None:
    other = server.clone(REPO, tmp_path / "other")

    def push(_request: Request) -> None:
        (other / "theirs").write_text("t")
        git(other, "add", "theirs")
        git(other, "-c", "user.name=o", "-c", "user.email=o@o", "commit", "-qm", "Theirs")
        git(other, "push", "-q", "origin", "main", environment=server.environment())

    server.faults.append(Fault("receive", "call", call=push))
    remote.commit("main", files.of({"ours": b"o"}), [], "Sync")
    assert there(server) == {"ours": b"o", "theirs": b"t"}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault("put", status=503), marks=pytest.mark.nightly),
        Fault("put", status=503, times=2),
        Fault("put", "cut"),
        pytest.param(Fault("batch", status=500), marks=pytest.mark.nightly),
        Fault("refs", status=503, after=1),
        pytest.param(Fault("upload", status=502), marks=pytest.mark.nightly),
        pytest.param(Fault("receive", status=500), marks=pytest.mark.nightly),
        Fault("receive", "lost reply"),
        Fault("receive", "cut"),
    ],
    ids=lambda fault: f"{fault.what} {fault.does} {fault.status} {fault.times}",
)
def test_after_a_bad_day_everything_is_there_in_one_commit(
    server: GitServer, remote: GitRemote, files: Files, fault: Fault
) -> None:
    contents = {"log": b"l\n", "large.pt": os.urandom(8) + bytes(LARGE)}
    server.faults.append(fault)
    head = remote.commit("main", files.of(contents), [], "Sync")
    server.faults.clear()
    assert there(server) == contents
    assert git(server.git_folder(REPO), "rev-list", "main").split()[0] == head
    assert git(server.git_folder(REPO), "rev-list", "--count", "main").strip() == "2"


def test_a_commit_whose_push_failed_is_pushed_by_the_next_sync_though_nothing_changed_here(
    server: GitServer, remote: GitRemote, files: Files
) -> None:
    contents = {"log": b"l\n", "large.pt": os.urandom(8) + bytes(LARGE)}
    server.faults.append(Fault("receive", status=503, times=None))

    def no_more_time(_seconds: float) -> None:
        raise OutOfTime("over")

    with pytest.raises(OutOfTime):
        GitRemote(server.url(REPO), TOKEN, Patience(60.0, no_more_time)).commit("main", files.of(contents), [], "Sync")
    assert puts(server) == 1
    server.faults.clear()
    remote.commit("main", files.of(contents), [], "Sync")
    assert puts(server) == 1, "what had arrived was sent again"
    assert there(server) == contents


def test_a_file_that_is_written_over_while_it_is_sent_is_no_commit(
    server: GitServer, remote: GitRemote, files: Files
) -> None:
    moments = files.of({"large.pt": bytes(LARGE + 1)}, rested=True)
    head = remote.head("main")

    def write_over(_request: Request) -> None:
        (files.folder / "0").write_bytes(b"x" * (LARGE + 1))

    server.faults.append(Fault("batch", "call", call=write_over))
    with pytest.raises(Changed):
        remote.commit("main", moments, [], "Sync")
    assert remote.head("main") == head and there(server) == {}


def test_a_checkpoint_gets_a_branch_and_then_a_tag(server: GitServer, remote: GitRemote, files: Files) -> None:
    remote.begin("sending-1", True)
    head = remote.commit("sending-1", files.of({"w": b"w"}), [], "Save")
    remote.tag("global_step1", "sending-1")
    remote.tag("global_step1", "sending-1")  # again, after a lost answer
    assert (remote.head("global_step1"), remote.head("sending-1")) == (head, None)
    assert there(server, "global_step1") == {"w": b"w"} and there(server) == {}


def test_a_repository_that_is_not_there_is_said_with_what_to_do(server: GitServer, files: Files) -> None:
    gone = GitRemote(server.url("lab/none"), TOKEN, Patience(60.0, sleep=lambda _: None))
    assert (gone.head("main"), gone.listed("main"), gone.may_write()) == (None, {}, None)
    with pytest.raises(Refused, match="lab/none"):
        gone.begin("main", True)


def test_a_token_taken_back_in_the_middle_is_one_line_and_a_new_one_goes_on(
    server: GitServer, remote: GitRemote, files: Files
) -> None:
    contents = {"log": b"l\n", "large.pt": os.urandom(8) + bytes(LARGE)}
    server.faults.append(Fault("receive", "call", call=lambda _: setattr(server, "token", "another")))
    with pytest.raises(Refused, match=r"\(401\).*\[hub\] token") as refused:
        remote.commit("main", files.of(contents), [], "Sync")
    assert "\n" not in str(refused.value) and TOKEN not in str(refused.value)
    opened(server, token="another").commit("main", files.of(contents), [], "Sync")
    assert puts(server) == 1 and there(server) == contents


def test_a_token_that_may_only_read_is_known_before_anything_is_sent(server: GitServer, remote: GitRemote) -> None:
    assert remote.may_write() is True
    server.may_write = False
    assert remote.may_write() is False
    assert git(server.git_folder(REPO), "for-each-ref", "--format=%(refname)").split() == ["refs/heads/main"]


def test_what_a_server_says_is_told_without_the_token(server: GitServer, remote: GitRemote, files: Files) -> None:
    hook = server.git_folder(REPO) / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho 'quota-{TOKEN}' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(OpsctlError, match=r"remote: quota-\*\*\*") as refused:
        remote.commit("main", files.of({"log": b"l"}), [], "Sync")
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://ann:secret@host/lab/run.git", "password"),
        ("http://host/lab/run.git", "over https"),
        ("ssh://host/lab/run.git", "over https"),
        ("https://host/", "no repository"),
        ("https://host/a\nb", "no repository"),
    ],
)
def test_a_url_that_would_give_a_token_away_is_refused(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        GitRemote(url, TOKEN, Patience(1.0))
    assert "secret" not in str(refused.value)


def test_the_token_is_in_no_argument_and_in_no_file(
    server: GitServer, remote: GitRemote, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    # What would write it down, or send it elsewhere, where it counted: the account's, and the site's.
    store = f"[credential]\n helper = store --file {home}/stored\n"
    (home / ".gitconfig").write_text(f"{store}[http]\n extraHeader = X-Mine: 1\n[core]\n hooksPath = {home}\n")
    (home / "system").write_text(store)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", str(home / "system"))
    monkeypatch.setenv("GIT_TRACE_CURL", str(tmp_path / "trace"))
    monkeypatch.setenv("GIT_TRACE_REDACT", "0")
    seen: list[str] = []

    def look(request: Request) -> None:
        seen.extend(_shown(request, tmp_path))

    server.faults += [Fault("batch", status=500), Fault("put", status=500)]  # which git-lfs writes logs about
    server.faults += [Fault(what, "call", times=None, call=look) for what in ("refs", "batch", "put", "receive")]
    remote.commit("main", files.of({"log": b"l\n", "large.pt": os.urandom(8) + bytes(LARGE)}), [], "Sync")
    assert len(seen) > 50, "nothing was looked at"
    assert [one for one in seen if one.startswith("LEAK")] == []
    assert {path.name for path in home.iterdir()} == {".gitconfig", "system"}
    assert not (tmp_path / "trace").exists()
    assert not any("x-mine" in one.headers for one in server.asked())


def test_a_storage_that_asks_for_a_password_gets_none(server: GitServer, remote: GitRemote, files: Files) -> None:
    challenge = {"WWW-Authenticate": 'Basic realm="storage"'}
    server.faults.append(Fault("put", status=401, headers=challenge, times=None))
    with pytest.raises(OpsctlError):
        opened(server, 3.0).commit("main", files.of({"large.pt": os.urandom(8) + bytes(LARGE)}), [], "Sync")
    assert server.asked("put") and server.leaked == []


def _shown(request: Request, folder: Path) -> list[str]:
    """What anybody can see of processes, and every file that there is, while a request is under way."""
    seen = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = place.read_bytes()
            seen.append(f"LEAK {words!r}" if any(secret in words for secret in SECRETS) else request.what)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with contextlib.suppress(OSError):
                content = path.read_bytes()
                seen.append(f"LEAK {path}" if any(secret in content for secret in SECRETS) else request.what)
    return seen


KILLED = """
import os, sys, tempfile
from pathlib import Path
from opsctl.transfer.hub import git_remote
from opsctl.transfer.hub.git_remote import GitRemote
from opsctl.transfer.hub.file_snapshot import Moment
from opsctl.transfer.hub.retry_policy import Patience
git_remote.LARGEST_REGULAR_BYTES = 5000
url, token, *paths = sys.argv[1], os.environ["THE_TOKEN"], *sys.argv[2:]
add = {Path(path).name: Moment(os.open(path, os.O_RDONLY)) for path in paths}
GitRemote(url, token, Patience(60.0)).commit("main", add, [], "Sync")
"""


@pytest.mark.parametrize(
    "stage", [*(pytest.param(one, marks=pytest.mark.nightly) for one in ("refs", "upload", "batch")), "put", "receive"]
)
def test_killed_at_any_stage_nothing_needs_mending_and_nothing_goes_twice(
    server: GitServer, remote: GitRemote, files: Files, tmp_path: Path, stage: str
) -> None:
    contents = {"0": b"l\n", "1": os.urandom(8) + bytes(LARGE)}
    moments = files.of(contents)
    paths = [str(files.folder / name) for name in contents]
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, server.url(REPO), *paths], env={**os.environ, "THE_TOKEN": TOKEN}
    )

    def kill(_request: Request) -> None:
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=10)

    server.faults.append(Fault(stage, "call", call=kill, after=1 if stage == "refs" else 0))
    assert child.wait(timeout=60) == -signal.SIGKILL
    _until(lambda: not _at_work_in(tmp_path / "tmp"))
    server.requests.clear()
    remote.commit("main", moments, [], "Sync")
    assert there(server) == contents
    assert puts(server) <= 1
    if stage == "receive":
        assert puts(server) == 0
    assert list((tmp_path / "tmp").glob("opsctl-git-*")) == [], "what the killed one left is still there"


def _at_work_in(folder: Path) -> list[str]:
    """Processes that go on there a moment after their parent was killed."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            found.append(str(place.readlink()))
    return [one for one in found if one.startswith(str(folder))]


def _until(is_so: Callable[[], bool]) -> None:
    for _ in range(3000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to that")
