"""A repository on a hub of our own, and this process as a user who reads it from a laptop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hub_server import TOKEN, Hub, hub_server

REPO = "lab/run"
LOG = "logs/main_log.txt"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub with one public, empty repository; no one is logged in here."""
    from huggingface_hub import close_session, constants

    with hub_server(tmp_path / "hub") as served:
        served.make_repo(REPO)
        for name, value in served.environment(tmp_path / "home", token=None).items():
            monkeypatch.setenv(name, value)
        for name, of_old in (("ENDPOINT", constants.ENDPOINT), ("HUGGINGFACE_CO_URL_TEMPLATE", constants.ENDPOINT)):
            now = getattr(constants, name).replace(of_old, served.endpoint)  # read at the import, long ago
            monkeypatch.setattr(constants, name, now)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "home" / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield served
        close_session()


def log_in(monkeypatch: pytest.MonkeyPatch, token: str = TOKEN) -> None:
    """Have this process read with a token."""
    monkeypatch.setenv("HF_TOKEN", token)


def pushes(hub: Hub, content: bytes | None, path: str = LOG) -> Callable[[], object]:
    """A user commits the log as it is now."""
    return lambda: hub.commit(REPO, {path: content})
