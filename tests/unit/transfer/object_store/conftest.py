"""What the tests of stores share: files with names of every kind, and a real S3 server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.s3_fixtures import bucket as bucket  # fixtures
from tests.s3_fixtures import proxy as proxy
from tests.s3_fixtures import s3 as s3
from tests.s3_fixtures import server as server

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
