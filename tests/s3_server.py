"""A real S3 server, moto's, in a process of its own, and a proxy before it that does what networks and servers do."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.free_port import free_port

KEY, SECRET = "AKIDSTORETEST", "a-secret-that-no-output-may-hold"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
}
#: The least that the server takes as a part that is not the last; S3's own 5 MiB would take the tests' time.
PART_BYTES = 1 << 20
_STARTS_WITHIN_S = 60.0
_PIECE_BYTES = 1 << 16


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint of a server that begins empty."""
    port = free_port()
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    parts = {**os.environ, "S3_UPLOAD_PART_MIN_SIZE": str(PART_BYTES)}
    with subprocess.Popen(words, env=parts, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            endpoint = f"http://127.0.0.1:{port}"
            _wait_for(endpoint)
            yield endpoint
        finally:
            process.kill()


def _wait_for(endpoint: str) -> None:
    ends_at = time.monotonic() + _STARTS_WITHIN_S
    while True:
        try:
            urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=10).close()
            return
        except OSError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.05)


def client(endpoint: str) -> Any:
    """boto3's, which is not what is tested."""
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )


@dataclass
class Fault:
    """A fault of the requests whose `METHOD /target` matches the pattern."""

    pattern: str
    does: str
    times: int = 1
    status: int = 500
    code: str = "InternalError"
    headers: dict[str, str] = field(default_factory=dict)
    calls: Callable[[], object] | None = None


class Proxy:
    """A proxy: `faults` may be added at any time, `requests` has every `METHOD /target` received."""

    def __init__(self, behind: str) -> None:
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.sent_bytes = 0
        self.lock = threading.Lock()
        self._behind = behind.removeprefix("http://")
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle_one_request()

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                proxy.passed_on(self)

            do_PUT = do_POST = do_HEAD = do_DELETE = do_GET

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        self._server.shutdown()
        self._server.server_close()

    def count(self, pattern: str) -> int:
        """Return how many requests came that the pattern is found in."""
        return sum(bool(re.search(pattern, one)) for one in self.requests)

    def _fault_for(self, request: str) -> Fault | None:
        with self.lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.times and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None

    def passed_on(self, handler: BaseHTTPRequestHandler) -> None:
        """One request."""
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        fault = self._fault_for(f"{handler.command} {handler.path}")
        does = fault.does if fault else ""
        if fault and does in ("answer", "silent", "drip"):
            handler.close_connection = True
            if fault.calls:
                fault.calls()
            if does == "answer":
                _answer(handler, fault)
            else:
                self._keep_waiting(handler, does == "drip")
            return
        with self.lock:
            self.sent_bytes += len(body)
        connection = http.client.HTTPConnection(self._behind, timeout=60)
        try:
            self._exchange(handler, connection, body, fault)
        finally:
            connection.close()

    def _keep_waiting(self, handler: BaseHTTPRequestHandler, with_bytes: bool) -> None:
        """Until no one waits any more."""
        if with_bytes:
            handler.send_response_only(200)
            handler.send_header("Content-Length", str(1 << 30))
            handler.end_headers()
        while self._server.socket.fileno() >= 0:
            if with_bytes:
                handler.wfile.write(b" ")
            time.sleep(0.05)

    def _exchange(
        self, handler: BaseHTTPRequestHandler, connection: http.client.HTTPConnection, body: bytes, fault: Fault | None
    ) -> None:
        does = fault.does if fault else ""
        if does == "flip":
            middle = len(body) // 2  # of several parts in one body none has its frame there
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        connection.putrequest(handler.command, handler.path, skip_host=True, skip_accept_encoding=True)
        for name, value in handler.headers.items():
            connection.putheader(name, value)
        if does == "cut request":
            connection.endheaders(body[: len(body) // 2])
            handler.close_connection = True
            return
        connection.endheaders(body)
        answer = connection.getresponse()
        data = answer.read()
        if fault and fault.calls:
            fault.calls()
        if answer.status == 500 and "uploadId=" in handler.path:
            # What this server says of an upload that has ended; S3 says this.
            _answer(handler, Fault("", "answer", 1, 404, "NoSuchUpload"))
            handler.close_connection = True
            return
        if does == "lost answer":
            handler.close_connection = True
            return
        handler.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                handler.send_header(name, value)
        length = answer.getheader("Content-Length") if handler.command == "HEAD" else str(len(data))
        handler.send_header("Content-Length", length or "0")
        handler.end_headers()
        if does == "cut answer":
            handler.close_connection = True
            data = data[: len(data) // 2]
        handler.wfile.write(data)


def _answer(handler: BaseHTTPRequestHandler, fault: Fault) -> None:
    text = f"<?xml version='1.0'?><Error><Code>{fault.code}</Code><Message>{SECRET[:3]}</Message></Error>"
    data = b"" if handler.command == "HEAD" else text.encode()
    handler.send_response_only(fault.status)
    for name, value in fault.headers.items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.send_header("Connection", "close")
    handler.end_headers()
    handler.wfile.write(data)


@contextlib.contextmanager
def proxied(endpoint: str) -> Iterator[Proxy]:
    """A proxy before the server at `endpoint`."""
    proxy = Proxy(endpoint)
    try:
        yield proxy
    finally:
        proxy.close()


def environment(endpoint: str) -> dict[str, str]:
    """Return what a process needs to reach the server as its variables say."""
    return {**os.environ, **ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}
