"""A real server that speaks the hub's protocol as huggingface_hub 2.4.0 uses it, and has bad days by rule.

`with hub_server(folder) as hub:` serves on `hub.endpoint` (http://127.0.0.1:PORT). Contents are stored and fetched at
http://localhost:PORT, another host to every client, so that a token that follows a link there is seen (`hub.leaked`).
What came is in `hub.requests`; what is to go wrong is in `hub.faults`; what the hub now has is told by `hub.content`,
`hub.files` and `hub.commits`. Put `hub.environment(home)` into a client's environment.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import formatdate
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

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
    """What goes wrong with requests of kind `what` ("*": any), `times` times (None: always) after the first `after`.

    does: "status" (answers `status` with `headers`, does nothing), "cut" (half of the body is read, then the line is
    dead), "lost reply" (done, never answered), "short" (a download that ends in its middle), "wrong" (other bytes than
    those that came or are stored), "forget" (a PUT acknowledged and not kept), "slow" (after `seconds`), "revoke"
    (every token is worth nothing from here on), "call" (`call(request)`, then as if nothing were).
    """

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
    """What a repository has: every commit, branches and tags by name."""

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
        """Where contents go: another host name, to which no token may follow."""
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
        """Somebody else's commit: contents by path, None to delete. Returns its oid."""
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


# (kind, method, pattern of the path); {repo} is OWNER/NAME
ROUTES = [
    (what, method, re.compile(pattern.replace("{repo}", r"(?P<repo>[^/]+/[^/]+)").replace("{rev}", r"(?P<rev>[^/]+)")))
    for what, method, pattern in (
        ("whoami", "GET", r"/api/whoami-v2"),
        ("create", "POST", r"/api/repos/create"),
        ("yaml", "POST", r"/api/validate-yaml"),
        ("auth", "GET", r"/api/models/{repo}/auth-check(?:/write)?"),
        ("branch", "POST", r"/api/models/{repo}/branch/{rev}"),
        ("unbranch", "DELETE", r"/api/models/{repo}/branch/{rev}"),
        ("tag", "POST", r"/api/models/{repo}/tag/{rev}"),
        ("untag", "DELETE", r"/api/models/{repo}/tag/{rev}"),
        ("refs", "GET", r"/api/models/{repo}/refs"),
        ("commits", "GET", r"/api/models/{repo}/commits/{rev}"),
        ("tree", "GET", r"/api/models/{repo}/tree/{rev}(?:/(?P<file>.*))?"),
        ("paths", "POST", r"/api/models/{repo}/paths-info/{rev}"),
        ("preupload", "POST", r"/api/models/{repo}/preupload/{rev}"),
        ("commit", "POST", r"/api/models/{repo}/commit/{rev}"),
        ("info", "GET", r"/api/models/{repo}(?:/revision/{rev})?"),
        ("batch", "POST", r"/{repo}\.git/info/lfs/objects/batch"),
        ("verify", "POST", r"/{repo}\.git/info/lfs/verify"),
        ("resolve", "GET", r"/{repo}/resolve/{rev}/(?P<file>.*)"),
        ("put", "PUT", r"/storage/(?P<file>[0-9a-f]{64})"),
        ("part", "PUT", r"/storage/(?P<file>[0-9a-f]{64})/(?P<part>\d+)"),
        ("complete", "POST", r"/storage/(?P<file>[0-9a-f]{64})/complete"),
        ("fetch", "GET", r"/storage/(?P<file>[0-9a-f]{64})"),
    )
]


class _Handler(BaseHTTPRequestHandler):
    """One request: known by its route, recorded, spoiled where a fault says so, answered."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes, and the second would wait for the first's receipt
    hub: Hub
    fault: Fault | None
    where: dict[str, str]
    query: dict[str, list[str]]
    body: bytes

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("GET")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    def do_DELETE(self) -> None:
        self._serve("DELETE")

    def _serve(self, method: str) -> None:
        url = urlsplit(self.path)
        self.query = parse_qs(url.query)
        what, self.where = _route(method, url.path)
        length, self.body, self.fault = int(self.headers.get("Content-Length") or 0), b"", None
        is_content = what in ("put", "part")
        self.fault = self._fault(what)
        if self.fault is not None and self.fault.does == "cut":
            self.rfile.read(length // 2)
            self._record(what, None, length // 2)
            self._die()
            return
        if not is_content:
            self.body = self.rfile.read(length)
        request = self._record(what, None if is_content else self.body, length)
        try:
            if self.fault is not None:
                self._spoil(self.fault, request)
            if what not in ("put", "part", "complete", "fetch"):
                self._let_in(what)
            getattr(self, "_" + what)()
        except Refused as refused:
            if is_content:
                self.close_connection = True  # what is left of the body is not read
            self._answer({"error": refused.message}, refused.status, _error_headers(refused))

    def _fault(self, what: str) -> Fault | None:
        with self.hub.lock:
            for fault in self.hub.faults:
                if fault.what not in (what, "*") or fault.times == 0:
                    continue
                if fault.after > 0:
                    fault.after -= 1
                    continue
                if fault.times is not None:
                    fault.times -= 1
                return replace(fault)
        return None

    def _record(self, what: str, body: bytes | None, length: int) -> Request:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(what, self.command, self.path, headers.get("host", ""), headers, body, length)
        with self.hub.lock:
            self.hub.requests.append(request)
        return request

    def _spoil(self, fault: Fault, request: Request) -> None:
        if fault.does == "status":
            raise Refused(fault.status, message="a bad day")
        if fault.does == "slow":
            self.hub.released.wait(fault.seconds)
        if fault.does == "revoke":
            self.hub.accounts.clear()
        if fault.does == "call" and fault.call is not None:
            fault.call(request)

    def _let_in(self, what: str) -> None:
        """Who asks must be known to write, and to read what is private."""
        account = self.hub.accounts.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))
        if account is None and (self.headers.get("Authorization") or what == "whoami"):
            raise Refused(401, message="Invalid credentials in Authorization header")
        repo = self.hub.repos.get(self.where.get("repo", ""))
        hidden = repo is not None and repo.private and account is None
        if self.where.get("repo") and (repo is None or hidden):
            raise Refused(404, "RepoNotFound", "Repository not found")
        reads = what in ("whoami", "info", "tree", "paths", "refs", "commits", "resolve", "yaml", "auth")
        if not reads and (account is None or account.role != "write"):
            raise Refused(403 if account else 401, message="You don't have the rights to write")

    # what is asked, by kind

    def _whoami(self) -> None:
        account = self.hub.accounts[self.headers["Authorization"].removeprefix("Bearer ")]
        organizations = [{"name": name, "type": "org", "roleInOrg": "write"} for name in account.organizations]
        token = {"accessToken": {"displayName": "test", "role": account.role}, "type": "access_token"}
        self._answer({"type": "user", "name": account.name, "orgs": organizations, "auth": token})

    def _create(self) -> None:
        wanted = json.loads(self.body)
        owner = wanted.get("organization") or next(iter(self.hub.accounts.values())).name
        repo = f"{owner}/{wanted['name']}"
        answer = {"url": f"{self.hub.endpoint}/{repo}", "name": repo}
        account = self.hub.accounts[self.headers["Authorization"].removeprefix("Bearer ")]
        if owner not in (account.name, *account.organizations):
            raise Refused(403, message=f"You don't have the rights to create a model under {owner}")
        if repo in self.hub.repos:
            self._answer({**answer, "error": "You already created this model repo"}, 409)
            return
        self.hub.make_repo(repo, private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
        self._answer(answer)

    def _auth(self) -> None:
        account = self.hub.accounts.get((self.headers.get("Authorization") or "").removeprefix("Bearer "))
        if self.path.endswith("/write") and (account is None or account.role != "write"):
            raise Refused(403, message="no right to write")
        self._answer(None)

    def _yaml(self) -> None:
        self._answer({"errors": [], "warnings": []})

    def _branch(self) -> None:
        start = json.loads(self.body or b"{}").get("startingPoint") or "main"
        with self.hub.lock:
            if self._rev() in self._repo().branches:
                raise Refused(409, message="Reference already exists")
            self._repo().branches[self._rev()] = self.hub.head(self.where["repo"], start)
        self._answer(None)

    def _unbranch(self) -> None:
        if self._repo().branches.pop(self._rev(), None) is None:
            raise Refused(404, "RevisionNotFound", "no such branch")
        self._answer(None)

    def _tag(self) -> None:
        tag = json.loads(self.body)["tag"]
        with self.hub.lock:
            if tag in self._repo().tags:
                raise Refused(409, message="Tag already exists")
            self._repo().tags[tag] = self.hub.head(self.where["repo"], self._rev())
        self._answer(None)

    def _untag(self) -> None:
        if self._repo().tags.pop(self._rev(), None) is None:
            raise Refused(404, "RevisionNotFound", "no such tag")
        self._answer(None)

    def _refs(self) -> None:
        shown = {
            kind: [{"name": name, "ref": f"refs/{ref}/{name}", "targetCommit": oid} for name, oid in sorted(of.items())]
            for kind, ref, of in (("branches", "heads", self._repo().branches), ("tags", "tags", self._repo().tags))
        }
        self._answer({**shown, "converts": []})

    def _commits(self) -> None:
        repo, oid, found = self._repo(), self.hub.head(self.where["repo"], self._rev()), []
        while oid:
            one = repo.commits[oid]
            found.append(
                {
                    "id": oid,
                    "title": one.title,
                    "message": one.message,
                    "authors": [],
                    "date": _date(one),
                }
            )
            oid = one.parent
        self._answer(found)

    def _info(self) -> None:
        oid = self.hub.head(self.where["repo"], self._rev())
        names = [{"rfilename": path} for path in sorted(self._repo().commits[oid].files)]
        self._answer({"id": self.where["repo"], "sha": oid, "private": self._repo().private, "siblings": names})

    def _tree(self) -> None:
        below = unquote(self.where.get("file") or "").rstrip("/")
        files = self.hub.files(self.where["repo"], self._rev())
        shown = {path: file for path, file in sorted(files.items()) if not below or path.startswith(below + "/")}
        if below and not shown:
            raise Refused(404, "EntryNotFound", f"{below} does not exist")
        start = int(self.query.get("cursor", ["0"])[0])
        page = list(shown.items())[start : start + self.hub.page_files]
        more = start + self.hub.page_files
        headers = {}
        if more < len(shown):
            bare = urlsplit(self.path)
            headers["Link"] = f'<{self.hub.endpoint}{bare.path}?recursive=True&cursor={more}>; rel="next"'
        self._answer([self._entry(path, file) for path, file in page], headers=headers)

    def _paths(self) -> None:
        wanted = parse_qs(self.body.decode()).get("paths", [])
        files = self.hub.files(self.where["repo"], self._rev())
        self._answer([self._entry(path, files[path]) for path in wanted if path in files])

    def _entry(self, path: str, file: File) -> dict[str, Any]:
        body = parse_qs(self.body.decode(errors="replace"))
        if "true" not in "".join([*self.query.get("expand", []), *body.get("expand", [])]).lower():
            return _entry(path, file)
        repo, one = self._repo(), self._repo().commits[self.hub.head(self.where["repo"], self._rev())]
        while one.parent and repo.commits[one.parent].files.get(path) == file:
            one = repo.commits[one.parent]
        return {**_entry(path, file), "lastCommit": {"id": one.oid, "title": one.title, "date": _date(one)}}

    def _preupload(self) -> None:
        files = self.hub.files(self.where["repo"], self._rev())
        answer = []
        for one in json.loads(self.body)["files"]:
            lfs = one["size"] >= self.hub.lfs_from_bytes or self._always_lfs(one["path"])
            said = {"path": one["path"], "uploadMode": "lfs" if lfs else "regular"}
            said["shouldIgnore"] = self._is_ignored(one["path"], files)
            there = files.get(one["path"])
            if self.hub.tells_oids and there is not None:
                said["oid"] = there.sha256 if there.lfs else there.oid
            answer.append(said)
        self._answer({"files": answer})

    def _is_ignored(self, path: str, files: dict[str, File]) -> bool:
        """By the `.gitignore` at the repository's root, as far as names of files go."""
        if ".gitignore" not in files:
            return False
        patterns = self.hub.object_path(files[".gitignore"].sha256).read_text().split()
        return any(fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in patterns)

    def _always_lfs(self, path: str) -> bool:
        return any(fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in self.hub.lfs_patterns)

    def _batch(self) -> None:
        wanted = json.loads(self.body)
        one = self._to_upload if wanted["operation"] == "upload" else self._to_download
        transfer = "multipart" if "multipart" in wanted.get("transfers", ()) and self.hub.part_bytes else "basic"
        answer = {"transfer": transfer, "objects": [one(o["oid"], o["size"], transfer) for o in wanted["objects"]]}
        self._answer(answer, headers={"Content-Type": "application/vnd.git-lfs+json"})

    def _to_upload(self, oid: str, size: int, transfer: str) -> dict[str, Any]:
        if self.hub.object_path(oid).exists():
            return {"oid": oid, "size": size}
        href = f"{self.hub.storage}/storage/{oid}"
        upload: dict[str, Any] = {"href": href}
        part = self.hub.part_bytes
        if transfer == "multipart" and part is not None and size > part:
            urls = {str(k + 1): f"{href}/{k + 1}" for k in range(-(-size // part))}
            upload = {"href": f"{href}/complete", "header": {"chunk_size": str(part), **urls}}
        actions = {"upload": upload}
        if self.hub.verifies:
            actions["verify"] = {"href": f"{self.hub.endpoint}/{self.where['repo']}.git/info/lfs/verify"}
        return {"oid": oid, "size": size, "actions": actions}

    def _to_download(self, oid: str, size: int, transfer: str) -> dict[str, Any]:
        if not self.hub.object_path(oid).exists():
            return {"oid": oid, "size": size, "error": {"code": 404, "message": "Object does not exist"}}
        return {"oid": oid, "size": size, "actions": {"download": {"href": f"{self.hub.storage}/storage/{oid}"}}}

    def _verify(self) -> None:
        wanted = json.loads(self.body)
        place = self.hub.object_path(wanted["oid"])
        if not self._forgets() and (not place.exists() or place.stat().st_size != wanted["size"]):
            raise Refused(404, message="Object does not exist")
        self._answer(None)

    def _commit(self) -> None:
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = lines[0]["value"]
        with self.hub.lock:
            branch, repo = self._rev(), self.where["repo"]
            if branch not in self._repo().branches:
                raise Refused(404, "RevisionNotFound", f"Invalid rev id: {branch}")
            if header.get("parentCommit", self.hub.head(repo, branch)) != self.hub.head(repo, branch):
                raise Refused(412, message="A commit has happened since. Please refresh and try again.")
            files = self.hub.files(repo, branch)
            for line in lines[1:]:
                self._apply(files, line["key"], line["value"])
            oid = self.hub._committed(repo, branch, header["summary"], header.get("description", ""), files)
        self._answer({"success": True, "commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{repo}/commit/{oid}"})

    def _apply(self, files: dict[str, File], key: str, value: dict[str, Any]) -> None:
        path = value["path"]
        if key == "file":
            content = base64.b64decode(value["content"])
            if len(content) > LARGEST_REGULAR_BYTES:
                raise Refused(400, message=f"{path} is larger than 10 MiB: use LFS")
            files[path] = File(self.hub._keep_bytes(content), len(content), False, git_blob(content))
        elif key == "lfsFile":
            place = self.hub.object_path(value["oid"])
            if not place.exists():
                raise Refused(400, message=f"LFS pointer pointed to a file that does not exist: {path}")
            size = place.stat().st_size
            files[path] = File(value["oid"], size, True, git_blob(pointer(value["oid"], size)))
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise Refused(404, "EntryNotFound", "A file with this name doesn't exist")
        elif key == "deletedFolder":
            gone = [one for one in files if one.startswith(path.rstrip("/") + "/")]
            if not gone:
                raise Refused(404, "EntryNotFound", "A folder with this name doesn't exist")
            for one in gone:
                del files[one]
        else:
            raise Refused(400, message=f"unknown operation {key}")

    def _resolve(self) -> None:
        path = unquote(self.where["file"])
        file = self.hub.files(self.where["repo"], self._rev()).get(path)
        if file is None:
            raise Refused(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": self.hub.head(self.where["repo"], self._rev()), "Accept-Ranges": "bytes"}
        if not file.lfs:
            self._content(self.hub.object_path(file.sha256), {**headers, "ETag": f'"{file.oid}"'})
            return
        linked = {"X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.sha256}"', "ETag": f'"{file.oid}"'}
        place = f"{self.hub.storage}/storage/{file.sha256}"
        self._answer(None, 302, {**headers, **linked, "Location": place})

    def _put(self) -> None:
        self._receive(self.hub.object_path(self.where["file"]), self.where["file"])

    def _part(self) -> None:
        place = self.hub.folder / f"part-{self.where['file']}-{self.where['part']}"
        self._receive(place, None)

    def _complete(self) -> None:
        oid, parts = self.where["file"], json.loads(self.body)["parts"]
        sources = [self.hub.folder / f"part-{oid}-{one['partNumber']}" for one in parts]
        taken, whole = self.hub.folder / f"whole-{oid}-{threading.get_ident()}", hashlib.sha256()
        with taken.open("wb") as out:
            for source, part in zip(sources, parts, strict=True):
                content = source.read_bytes()
                if hashlib.md5(content).hexdigest() != part["etag"].strip('"'):
                    raise Refused(400, message="InvalidPart")
                whole.update(content)
                out.write(content)
        self._take(taken, whole.hexdigest(), oid)

    def _receive(self, place: Path, sha256: str | None) -> None:
        """Stores the body at `place`, as it comes; refused where its checksum is another than `sha256`."""
        left, digest, md5 = int(self.headers["Content-Length"]), hashlib.sha256(), hashlib.md5()
        taken = self.hub.folder / f"taking-{threading.get_ident()}"
        with taken.open("wb") as out:
            while left:
                block = self.rfile.read(min(left, BLOCK_BYTES))
                if not block:
                    self.close_connection = True
                    return
                left -= len(block)
                if self.fault is not None and self.fault.does == "wrong":
                    block = bytes([block[0] ^ 1]) + block[1:]
                digest.update(block)
                md5.update(block)
                out.write(block)
        if sha256 is None:
            taken.replace(place)
            self._answer(None, headers={"ETag": f'"{md5.hexdigest()}"'})
            return
        self._take(taken, digest.hexdigest(), sha256)

    def _take(self, taken: Path, found: str, sha256: str) -> None:
        if found != sha256:
            raise Refused(400, message="BadDigest: the content does not have the checksum that was said")
        place = self.hub.object_path(sha256)
        place.parent.mkdir(parents=True, exist_ok=True)
        self.hub.taken.append(sha256)
        if self._forgets():
            taken.unlink()
        else:
            taken.replace(place)
        self._answer(None)

    def _forgets(self) -> bool:
        return self.fault is not None and self.fault.does == "forget"

    def _fetch(self) -> None:
        place = self.hub.object_path(self.where["file"])
        if not place.exists():
            raise Refused(404, message="NoSuchKey")
        self._content(place, {"ETag": f'"{binascii.crc32(place.name.encode()):x}"', "Accept-Ranges": "bytes"})

    def _content(self, place: Path, headers: dict[str, str]) -> None:
        """A file, or the range of it that is asked for."""
        if not place.exists():
            raise Refused(404, "EntryNotFound", "the storage has lost it")
        size, status = place.stat().st_size, 200
        first, last = 0, size - 1
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range") or "")
        if asked and any(asked.groups()):
            first = int(asked[1]) if asked[1] else max(0, size - int(asked[2]))
            last = min(int(asked[2]), size - 1) if asked[1] and asked[2] else size - 1
            if first >= size or last < first:
                self._answer(None, 416, {"Content-Range": f"bytes */{size}"})
                return
            status, headers = 206, {**headers, "Content-Range": f"bytes {first}-{last}/{size}"}
        with place.open("rb") as file:
            file.seek(first)
            self._send_content(file.read(last - first + 1), status, headers)

    def _send_content(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        does = self.fault.does if self.fault else ""
        if does == "wrong" and content:
            content = bytes([content[0] ^ 1]) + content[1:]
        self._head(status, len(content), headers)
        if self.command == "HEAD":
            return
        if does == "short":
            self.wfile.write(content[: len(content) // 2])
            self._die()
            return
        self.wfile.write(content)

    # answering

    def _repo(self) -> Repo:
        return self.hub.repos[self.where["repo"]]

    def _rev(self) -> str:
        return unquote(self.where.get("rev") or "main")

    def _answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        if self.fault is not None and self.fault.does == "lost reply":
            self._die()
            return
        extra = self.fault.headers if self.fault is not None else {}
        text = b"" if value is None else json.dumps(value).encode()
        self._head(status, len(text), {"Content-Type": "application/json", **(headers or {}), **extra})
        if self.command != "HEAD":
            self.wfile.write(text)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        self.send_header("Date", self.hub.date())
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _die(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _route(method: str, path: str) -> tuple[str, dict[str, str]]:
    for what, of, pattern in ROUTES:
        if of == method and (match := pattern.fullmatch(path)):
            return what, {name: value for name, value in match.groupdict().items() if value is not None}
    return "unknown", {}


def _error_headers(refused: Refused) -> dict[str, str]:
    headers = {"X-Error-Code": refused.code} if refused.code else {}
    return {**headers, "X-Error-Message": quote(refused.message, safe=" ,.'-:")} if refused.message else headers


def _date(commit: Commit) -> str:
    return datetime.fromtimestamp(commit.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _entry(path: str, file: File) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "oid": file.oid, "size": file.size}
    if file.lfs:
        size = len(pointer(file.sha256, file.size))
        entry["lfs"] = {"oid": file.sha256, "size": file.size, "pointerSize": size}
    return entry


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that was killed in the middle


@contextlib.contextmanager
def hub_server(folder: Path) -> Iterator[Hub]:
    """A hub whose contents lie in `folder`, until the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    hub = Hub(folder)
    handler = type("Handler", (_Handler,), {"hub": hub, "_unknown": lambda self: self._answer({"error": "?"}, 404)})
    server = _Server(("127.0.0.1", 0), handler)
    hub.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.released.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
