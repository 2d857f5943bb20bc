"""A git server with LFS: `git http-backend` as CGI and an LFS store beside it, behind one HTTP server with bad days.

`with git_server(folder) as server:` serves repositories made by `server.make_repo("lab/run")` at
`server.url("lab/run")` to whoever knows TOKEN (as a Basic password). LFS contents go to another host name (localhost),
where no token may come: `server.leaked`. What came is in `server.requests`; what is to go wrong in `server.faults`
(kinds: refs, upload, receive, batch, put, get, verify, locks).
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.hub_server import Fault, Request

TOKEN = "gt_" + "TheTokenOfAGitHost" * 2
BACKEND = Path(
    subprocess.run(["git", "--exec-path"], capture_output=True, text=True).stdout.strip(), "git-http-backend"
)
_GIT = r"/(?P<repo>[^/]+/[^/]+?)(?:\.git)?"
ROUTES = [
    (what, re.compile(pattern))
    for what, pattern in (
        ("refs", _GIT + r"/info/refs"),
        ("upload", _GIT + r"/git-upload-pack"),
        ("receive", _GIT + r"/git-receive-pack"),
        ("batch", _GIT + r"/info/lfs/objects/batch"),
        ("verify", _GIT + r"/info/lfs/verify"),
        ("locks", _GIT + r"/info/lfs/locks.*"),
        ("object", r"/storage/(?P<oid>[0-9a-f]{64})"),
    )
]


@dataclass
class GitServer:
    """The server, for a test to ask and to break."""

    folder: Path
    port: int = 0
    token: str = TOKEN
    may_write: bool = True
    requests: list[Request] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def url(self, repo: str) -> str:
        return f"http://127.0.0.1:{self.port}/{repo}.git"

    def git_folder(self, repo: str) -> Path:
        return self.folder / "git" / f"{repo}.git"

    def object_path(self, oid: str) -> Path:
        return self.folder / "lfs" / oid

    def make_repo(self, repo: str, *config: str) -> Path:
        """An empty repository that takes partial clones; `config` as name=value."""
        place = self.git_folder(repo)
        place.mkdir(parents=True)
        git(place, "init", "--quiet", "--bare", "--initial-branch=main")
        for one in ("uploadpack.allowFilter=true", "http.receivepack=true", *config):
            git(place, "config", *one.split("=", 1))
        return place

    def asked(self, *what: str) -> list[Request]:
        return [one for one in list(self.requests) if not what or one.what in what]

    @property
    def leaked(self) -> list[Request]:
        """Requests that carried a token to the storage's host."""
        return [one for one in list(self.requests) if one.bears_token and not one.host.startswith("127.0.0.1")]

    def environment(self) -> dict[str, str]:
        """For a git of the test's own: it answers the challenge."""
        helper = '!f() { printf "username=x\\npassword=%s\\n" "$TEST_GIT_TOKEN"; }; f'
        return {
            **os.environ,
            "TEST_GIT_TOKEN": self.token,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "credential.helper",
            "GIT_CONFIG_VALUE_0": helper,
            "HOME": str(self.folder),
        }

    def clone(self, repo: str, target: Path, branch: str = "main") -> Path:
        """What `git clone` and `git lfs pull` have of it: the truth that is not ours."""
        environment = {**self.environment(), "GIT_LFS_SKIP_SMUDGE": "1"}
        git(None, "clone", "--quiet", "--branch", branch, self.url(repo), str(target), environment=environment)
        git(target, "lfs", "install", "--local", environment=environment)
        git(target, "lfs", "pull", environment=self.environment())
        return target

    def contents(self, repo: str, branch: str = "main") -> dict[str, bytes]:
        """Read the files of a branch where they are stored: a fifth of a clone's time, and no proof of attributes."""
        plain = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "GIT_CONFIG_NOSYSTEM": "1"}
        command = ["git", "archive", "--format=tar", f"{branch}^{{tree}}"]
        made = subprocess.run(
            command, cwd=self.git_folder(repo), env=plain, capture_output=True, check=True, timeout=60
        )
        with tarfile.open(fileobj=io.BytesIO(made.stdout)) as tar:
            files = {one.name: tar.extractfile(one) for one in tar.getmembers() if one.isfile()}
            return {name: _stored(self, file.read()) for name, file in files.items() if file is not None}


def _stored(server: GitServer, content: bytes) -> bytes:
    """Return what the storage has for an LFS pointer, and any other content as it is."""
    match = re.fullmatch(rb"version https://git-lfs[^\n]*\noid sha256:([0-9a-f]{64})\nsize (\d+)\n", content)
    if match is None:
        return content
    found = server.object_path(match[1].decode()).read_bytes()
    assert (hashlib.sha256(found).hexdigest(), len(found)) == (match[1].decode(), int(match[2]))
    return found


def git(folder: Path | None, *words: str, environment: dict[str, str] | None = None) -> str:
    """Run it; its output. Fails where it does."""
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes, and the second would wait for the first's receipt
    server_of: GitServer
    fault: Fault | None

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path = urlsplit(self.path).path
        what, self.where = _route(path)
        what = {"GET": "get", "PUT": "put"}[self.command] if what == "object" else what
        self.fault = self._fault(what)
        if self.fault is not None and self.fault.does == "cut":
            self.rfile.read(int(self.headers.get("Content-Length") or 0) // 2)
            self._record(what, None)
            self._die()
            return
        body = self._body()
        request = self._record(what, body if what not in ("put", "get") else None)
        if self.fault is not None and self.fault.does == "call" and self.fault.call is not None:
            self.fault.call(request)
        if self.fault is not None and self.fault.does == "status":
            self._answer({"message": "a bad day"}, self.fault.status, self.fault.headers)
        elif what not in ("get", "put") and not self._is_known():
            self._answer({"message": "who?"}, 401, {"WWW-Authenticate": 'Basic realm="git"'})
        elif what == "unknown" or (what not in ("get", "put") and not self._folder().is_dir()):
            self._answer({"message": "not found"}, 404)
        elif self._writes(what, body) and not self.server_of.may_write:
            self._answer({"message": "read only"}, 403)
        else:
            getattr(self, "_" + what)(body)

    def _writes(self, what: str, body: bytes) -> bool:
        return what == "receive" or "service=git-receive-pack" in self.path or (what == "batch" and b'"upload"' in body)

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _is_known(self) -> bool:
        said = (self.headers.get("Authorization") or "").removeprefix("Basic ")
        with contextlib.suppress(ValueError):
            return base64.b64decode(said).decode().partition(":")[2] == self.server_of.token
        return False

    def _fault(self, what: str) -> Fault | None:
        with self.server_of.lock:
            for fault in self.server_of.faults:
                if fault.what not in (what, "*") or fault.times == 0:
                    continue
                if fault.after > 0:
                    fault.after -= 1
                    continue
                if fault.times is not None:
                    fault.times -= 1
                return replace(fault)
        return None

    def _record(self, what: str, body: bytes | None) -> Request:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(what, self.command, self.path, headers.get("host", ""), headers, body)
        with self.server_of.lock:
            self.server_of.requests.append(request)
        return request

    def _folder(self) -> Path:
        return self.server_of.git_folder(unquote(self.where.get("repo", "")))

    # git

    def _refs(self, body: bytes) -> None:
        self._backend(body)

    def _upload(self, body: bytes) -> None:
        self._backend(body)

    def _receive(self, body: bytes) -> None:
        self._backend(body)

    def _backend(self, body: bytes) -> None:
        url = urlsplit(self.path)
        tail = url.path.rpartition(".git")[2]
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server_of.folder / "git"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": f"/{self.where['repo']}.git{tail}",
            "QUERY_STRING": url.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(len(body)),
            "REMOTE_USER": "x",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
        }
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
            environment["CONTENT_LENGTH"] = str(len(body))
        done = subprocess.run([BACKEND], input=body, env=environment, capture_output=True, timeout=60)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(headers.pop("Status", "200").split()[0])
        if self.fault is not None and self.fault.does == "lost reply":
            self._die()
            return
        self._send(content, status, headers)

    # LFS

    def _batch(self, body: bytes) -> None:
        wanted = json.loads(body)
        objects = [self._lfs_object(wanted["operation"], one["oid"], one["size"]) for one in wanted["objects"]]
        self._answer({"transfer": "basic", "objects": objects}, 200, {"Content-Type": "application/vnd.git-lfs+json"})

    def _lfs_object(self, operation: str, oid: str, size: int) -> dict[str, Any]:
        href = {"href": f"http://localhost:{self.server_of.port}/storage/{oid}"}
        there = self.server_of.object_path(oid).exists()
        if operation == "upload":
            return {"oid": oid, "size": size, **({} if there else {"actions": {"upload": href}})}
        if not there:
            return {"oid": oid, "size": size, "error": {"code": 404, "message": "no such object"}}
        return {"oid": oid, "size": size, "actions": {"download": href}}

    def _put(self, body: bytes) -> None:
        oid = self.where["oid"]
        if hashlib.sha256(body).hexdigest() != oid:
            self._answer({"message": "wrong checksum"}, 400)
            return
        place = self.server_of.object_path(oid)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
        self._answer({})

    def _get(self, _body: bytes) -> None:
        self._send(self.server_of.object_path(self.where["oid"]).read_bytes(), 200, {})

    def _verify(self, _body: bytes) -> None:
        self._answer({})

    def _locks(self, _body: bytes) -> None:
        self._answer({"message": "no locks here"}, 404)

    # answering

    def _answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _die(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _route(path: str) -> tuple[str, dict[str, str]]:
    for what, pattern in ROUTES:
        if match := pattern.fullmatch(path):
            return what, match.groupdict()
    return "unknown", {}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that was killed in the middle


@contextlib.contextmanager
def git_server(folder: Path) -> Iterator[GitServer]:
    """A server whose repositories lie in `folder`, until the block ends."""
    (folder / "git").mkdir(parents=True)
    served = GitServer(folder)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": served}))
    served.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
