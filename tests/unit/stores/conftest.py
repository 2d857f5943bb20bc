"""What the tests of stores share: files with names of every kind, and a real S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.s3_server import ENVIRONMENT, Proxy, client, proxied, s3_server

#: Names that break what was written without thinking of them.
ODD = ("-rf", "a b", "line\nbreak", "tab\t'\"$(x)`&<?#%25+", "ключ 训练 🙂", "layer_01/shard 1.pt", "x" * 250)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with files of several sizes and odd names."""
    folder = tmp_path / "here"
    (folder / "layer_01").mkdir(parents=True)
    for number, name in enumerate(ODD):
        (folder / name).write_bytes(os.urandom(number * 1000))
    (folder / "large.bin").write_bytes(os.urandom((4 << 20) + 17))
    (folder / "manifest.json").write_text("{}")
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The endpoint of an S3 server."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def proxy(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What stands before the server, as this test's variables name it."""
    with proxied(server) as proxy:
        for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": proxy.endpoint}.items():
            monkeypatch.setenv(name, value)
        yield proxy


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
