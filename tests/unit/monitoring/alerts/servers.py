"""Real servers that take messages, or do what servers do on a bad day."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

#: Seconds for one answer: of a server that gives it, on a machine with other work too, and of one that never does.
ANSWERS_S = 30
HANGS_S = 2


@dataclass
class Mails:
    """An SMTP server's handler: what it took, and what it says to each DATA."""

    answers: list[str] = field(default_factory=list)  # for the next mails, in order; then all are accepted
    taken: list[tuple[str, str, str]] = field(default_factory=list)  # (subject, message id, recipient)
    tries: int = 0
    hangs_at: str = ""  # "HELO", "QUIT", or "DATA": after all of it has come
    drops_data: bool = False
    refused_recipients: tuple[str, ...] = ()
    reached: threading.Event = field(default_factory=threading.Event)  # it hangs
    port: int = 0

    async def handle_EHLO(self, server: SMTP, session: Session, envelope: Envelope, hostname: str) -> str:
        await self._hang("HELO")
        session.host_name = hostname
        return "250 HELP"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused_recipients:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.tries += 1
        if self.drops_data:
            assert server.transport is not None
            server.transport.close()
            return "250 not heard"
        await self._hang("DATA")
        answer = self.answers.pop(0) if self.answers else "250 OK"
        if answer.startswith("250"):
            content = envelope.content if isinstance(envelope.content, bytes) else b""
            mail = message_from_bytes(content)
            self.taken.append((str(mail["Subject"]), str(mail["Message-ID"]), envelope.rcpt_tos[0]))
        return answer

    async def handle_QUIT(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        await self._hang("QUIT")
        return "221 Bye"

    async def _hang(self, at: str) -> None:
        if self.hangs_at == at:
            self.reached.set()
            await asyncio.sleep(600)

    @property
    def url(self) -> str:
        """To send to it, as a person writes it: patiently, unless it hangs."""
        limit_s = HANGS_S if self.hangs_at else ANSWERS_S
        return f"mailto://127.0.0.1:{self.port}?from=desk@example.org&to=ann@example.org&cto={limit_s}&rto={limit_s}"


class _AnyPort(Controller):
    """Takes any free port."""

    def _trigger_server(self) -> None:
        self.port = cast(Any, self.server).sockets[0].getsockname()[1]
        cast(Any, super())._trigger_server()


@contextlib.contextmanager
def smtp_server(mails: Mails) -> Iterator[Mails]:
    controller = _AnyPort(mails, hostname="127.0.0.1", port=0, ready_timeout=20)
    controller.start()
    mails.port = controller.port
    try:
        yield mails
    finally:
        loop = controller.loop
        for task in asyncio.all_tasks(loop):
            loop.call_soon_threadsafe(task.cancel)
        controller.stop()


@dataclass
class Answer:
    """What an HTTP server says once."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    slow_s: float = 0.0
    drops: bool = False
    body: str = ""
    reason: str | None = None  # the words beside the status


@dataclass
class Posts:
    """An HTTP server's messages, and its next answers."""

    answers: list[Answer] = field(default_factory=list)
    otherwise: Callable[[], Answer] = Answer
    taken: list[dict[str, Any]] = field(default_factory=list)  # those answered with 200
    tries: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def url(self, path: str = "hook", more: str = "", limit_s: int = ANSWERS_S) -> str:
        return f"json://127.0.0.1:{self.port}/{path}?cto={limit_s}&rto={limit_s}{more}"

    @property
    def titles(self) -> list[str]:
        return [str(one["title"]) for one in self.taken]


@contextlib.contextmanager
def http_server(posts: Posts) -> Iterator[Posts]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            posts.tries += 1
            answer = posts.answers.pop(0) if posts.answers else posts.otherwise()
            if answer.hangs:
                posts.reached.set()
                posts.released.wait(60)
                return
            if answer.drops:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            if answer.slow_s:
                posts.released.wait(answer.slow_s)
            if answer.status == 200:
                posts.taken.append(json.loads(body) if body else {})
            with contextlib.suppress(OSError):
                self.send_response(answer.status, answer.reason)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body.encode())

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    posts.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield posts
    finally:
        posts.released.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
