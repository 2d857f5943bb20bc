"""What the tests of backups share: one S3 server for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.s3_server import ENVIRONMENT, Proxy, client, proxied, s3_server


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What stands before the server, as this test's variables name it."""
    with proxied(server) as found:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": found.endpoint}.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def bucket(server: str, request: pytest.FixtureRequest) -> tuple[str, Any]:
    """The name of a bucket of this test's own, and another program's client, past the proxy."""
    s3, name = client(server), f"b{abs(hash(request.node.nodeid)):x}{os.getpid()}"
    s3.create_bucket(Bucket=name)
    return name, s3
