"""A secret, and places to keep it."""

from __future__ import annotations

from pathlib import Path

import pytest

TOKEN = "T0K3N9aZ8sQ7wX6eC5rV4"
SLACK = f"slack://{TOKEN}/B1JUA29Q7/{TOKEN[::-1]}/#ops"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.toml"
    path.touch(mode=0o600)
    return path


def secret_file(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "slack.url"
    path.write_text(f"\n{SLACK}\nmore\n")
    path.chmod(mode)
    return path
