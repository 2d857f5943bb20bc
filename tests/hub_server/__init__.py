"""A real server that speaks the hub's protocol as huggingface_hub 2.4.0 uses it, and has bad days by rule.

`with hub_server(folder) as hub:` serves on `hub.endpoint` (http://127.0.0.1:PORT). Contents are stored and fetched at
http://localhost:PORT, another host to every client, so that a token that follows a link there is seen (`hub.leaked`).
What came is in `hub.requests`; what is to go wrong is in `hub.faults`; what the hub now has is told by `hub.content`,
`hub.files` and `hub.commits`. Put `hub.environment(home)` into a client's environment.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.hub_server.asking import Asking
from tests.hub_server.kept import TOKEN, Account, Fault, Hub, Request
from tests.hub_server.storing import Storing

__all__ = ["TOKEN", "Account", "Fault", "Hub", "Request", "hub_server"]


class _Handler(Asking, Storing):
    """The handler of requests of every kind."""


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
