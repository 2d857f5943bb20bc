"""`opsctl logs --hub` as a process on a machine that has no run: what goes where, and how it leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_server import TOKEN, Hub, hub_server
from tests.unit.cli.called import Answer, started

LOGS = [sys.executable, "-m", "opsctl", "logs"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with hub_server(tmp_path / "hub") as served:
        served.make_repo("lab/run", private=True)
        served.commit("lab/run", {"logs/main_log.txt": b"first\nsecond\x1b[2J\n"})
        yield served


def call(hub: Hub, home: Path, *words: str, token: str | None = TOKEN) -> Answer:
    return started(home, "logs", *words, environment=environment(hub, home, token))


def environment(hub: Hub, home: Path, token: str | None = TOKEN) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPSCTL_", "HF_"))}
    return {**kept, **hub.environment(home / "hf", token), "PYTHONUNBUFFERED": "1"}


def test_the_last_lines_are_shown_where_there_is_no_run(hub: Hub, tmp_path: Path) -> None:
    done = call(hub, tmp_path, "--hub", "lab/run", "-n", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "second\\x1b[2J\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hub", "lab/run", "--rank", "0"], "--rank"),
        (["--hub", "lab/run", "some-run"], "--hub"),
        (["--hub", "lab/run", "-f"], "--follow"),
        (["--revision", "x"], "--revision"),
        (["--hub", "run"], "OWNER/NAME"),
    ],
)
def test_what_cannot_be_asked_is_a_line(hub: Hub, tmp_path: Path, words: list[str], said: str) -> None:
    done = call(hub, tmp_path, *words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert hub.asked() == []


def test_without_a_token_a_private_one_is_a_line_with_what_to_type(hub: Hub, tmp_path: Path) -> None:
    done = call(hub, tmp_path, "--hub", "lab/run", token=None)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and "opsctl hub login" in done.stderr
