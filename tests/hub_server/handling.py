"""One request to the hub: known by its route, recorded, spoiled where a fault says so, answered."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.hub_server.kept import Fault, Hub, Refused, Repo, Request

# (kind, method, pattern of the path); {repo} is OWNER/NAME
ROUTES = [
    (what, method, re.compile(pattern.replace("{repo}", r"(?P<repo>[^/]+/[^/]+)").replace("{rev}", r"(?P<rev>[^/]+)")))
    for what, method, pattern in (
        ("whoami", "GET", r"/api/whoami-v2"),
        ("create", "POST", r"/api/repos/create"),
        ("yaml", "POST", r"/api/validate-yaml"),
        ("auth", "GET", r"/api/models/{repo}/auth-check(?:/write)?"),
        ("branch", "POST", r"/api/models/{repo}/branch/{rev}"),
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


class Handling(BaseHTTPRequestHandler):
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
        """Require a known user for writing, and for reading what is private."""
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
