"""The hub's state: repositories, commits, contents, accounts, requests, and planned faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

TOKEN = "hf_" + "OurOwnTestToken" * 2
BLOCK_BYTES = 1 << 20
LARGEST_REGULAR_BYTES = 10 << 20  # a regular file above it is refused, as the hub does


@dataclass(frozen=True)
class Request:
    """One request as it came; `what` is its kind (see `ROUTES`), `body` is None for contents."""

    what: str
    method: str
    path: str
    host: str
    headers: dict[str, str]
    body: bytes | None = None
    body_bytes: int = 0

    @property
    def bears_token(self) -> bool:
        return "authorization" in self.headers

    def json(self) -> Any:
        return json.loads(self.body or b"null")


@dataclass
class Fault:
    """A fault of requests of kind `what` ("*": any), `times` times (None: always) after the first `after`."""

    what: str
    does: str = "status"
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    times: int | None = 1
    after: int = 0
    seconds: float = 0.0
    call: Callable[[Request], None] | None = None


@dataclass(frozen=True)
class File:
    """A file in a commit. sha256: of its content; oid: git's name of the blob (of the pointer where it is LFS)."""

    sha256: str
    size: int
    lfs: bool
    oid: str


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str
    title: str
    message: str
    files: dict[str, File]
    at_s: float = field(default_factory=time)


@dataclass
class Repo:
    """The content of a repository: every commit, branches and tags by name."""

    private: bool
    commits: dict[str, Commit]
    branches: dict[str, str]
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class Account:
    name: str = "ann"
    organizations: tuple[str, ...] = ("lab",)
    role: str = "write"


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        self.status, self.code, self.message = status, code, message


def git_blob(content: bytes) -> str:
    """The name git gives a blob: sha1 over its header and content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def pointer(sha256: str, size: int) -> bytes:
    """git-lfs's pointer file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


@dataclass
class Hub:
    """The hub: repositories, contents by sha256 in `folder`, and all that a test wants to know or to break."""

    folder: Path
    port: int = 0
    accounts: dict[str, Account] = field(default_factory=lambda: {TOKEN: Account()})
    repos: dict[str, Repo] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)  # sha256 of each content that arrived whole
    lfs_from_bytes: int = LARGEST_REGULAR_BYTES
    lfs_patterns: tuple[str, ...] = ("*.bin", "*.pt", "*.safetensors", "*tfevents*", "*.zip", "*.npy")
    part_bytes: int | None = None  # contents larger than this are asked for in parts of this size
    page_files: int = 1000
    verifies: bool = True  # offers a `verify` action
    tells_oids: bool = True  # preupload says what is there already
    clock_skew_s: float = 0.0  # added to the Date of every answer
    lock: threading.RLock = field(default_factory=threading.RLock)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage(self) -> str:
        """Return where contents go: another host name, to which no token may follow."""
        return f"http://localhost:{self.port}"

    def date(self, later_s: float = 0.0) -> str:
        """A moment so many seconds from now, by its clock, as a header says it."""
        return formatdate(time() + self.clock_skew_s + later_s, usegmt=True)

    def environment(self, home: Path, token: str | None = TOKEN) -> dict[str, str]:
        """Variables for a client of this hub alone; `home` is its HF_HOME, where the token is logged in."""
        home.mkdir(parents=True, exist_ok=True)
        if token is not None:
            (home / "token").write_text(token)
            (home / "token").chmod(0o600)
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "*",
        }

    def asked(self, *what: str) -> list[Request]:
        """The requests of these kinds (all without), in order."""
        return [one for one in list(self.requests) if not what or one.what in what]

    @property
    def leaked(self) -> list[Request]:
        """Requests that carried a token to the storage's host."""
        return [one for one in list(self.requests) if one.bears_token and not one.host.startswith("127.0.0.1")]

    def make_repo(self, repo: str, *, private: bool = False) -> Repo:
        """A repository with one empty commit on main."""
        with self.lock:
            first = Commit(_oid("first", repo), "", "initial commit", "", {})
            self.repos[repo] = Repo(private, {first.oid: first}, {"main": first.oid})
            return self.repos[repo]

    def commits(self, repo: str, revision: str = "main") -> list[Commit]:
        """From the first commit to the newest, without the empty one that a repository is made with."""
        found, oid = [], self.head(repo, revision)
        while oid:
            found.append(self.repos[repo].commits[oid])
            oid = found[-1].parent
        return found[::-1][1:]

    def head(self, repo: str, revision: str = "main") -> str:
        known = self.repos[repo]
        oid = (
            known.branches.get(revision) or known.tags.get(revision) or (revision if revision in known.commits else "")
        )
        if not oid:
            raise Refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return oid

    def files(self, repo: str, revision: str = "main") -> dict[str, File]:
        with self.lock:
            return dict(self.repos[repo].commits[self.head(repo, revision)].files)

    def content(self, repo: str, path: str, revision: str = "main") -> bytes:
        return self.object_path(self.files(repo, revision)[path].sha256).read_bytes()

    def object_path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def lose(self, repo: str, path: str, revision: str = "main") -> None:
        """The content of an acknowledged file is gone from the storage; the commit that names it is not."""
        self.object_path(self.files(repo, revision)[path].sha256).unlink()

    def commit(
        self, repo: str, files: dict[str, bytes | None], title: str = "by another hand", branch: str = "main"
    ) -> str:
        """Another user's commit: contents by path, None to delete. Returns its oid."""
        with self.lock:
            now = dict(self.files(repo, branch))
            for path, content in files.items():
                now.pop(path, None)
                if content is not None:
                    sha256 = self._keep_bytes(content)
                    now[path] = File(sha256, len(content), False, git_blob(content))
            return self._committed(repo, branch, title, "", now)

    def _committed(self, repo: str, branch: str, title: str, message: str, files: dict[str, File]) -> str:
        known = self.repos[repo]
        oid = _oid(repo, branch, str(len(known.commits)))
        known.commits[oid] = Commit(oid, known.branches[branch], title, message, files, time() + self.clock_skew_s)
        known.branches[branch] = oid
        return oid

    def _keep_bytes(self, content: bytes) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        place = self.object_path(sha256)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        return sha256


def _oid(*of: str) -> str:
    return hashlib.sha1("\0".join(of).encode()).hexdigest()
