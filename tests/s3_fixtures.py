"""Fixtures around one real S3 server for a session; a conftest imports those that its tests ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.s3_server import ENVIRONMENT, Proxy, client, proxied, s3_server


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The endpoint of an S3 server."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Yield what stands before the server, as this test's variables name it."""
    with proxied(server) as found:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": found.endpoint}.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture
def s3(server: str) -> Any:
    """boto3's client, past the proxy."""
    return client(server)


@pytest.fixture
def bucket(s3: Any, request: pytest.FixtureRequest) -> str:
    """A bucket of this test's own."""
    name = f"b{abs(hash(request.node.nodeid)):x}{os.getpid()}"
    s3.create_bucket(Bucket=name)
    return name
