"""`opsctl status --hub` against `opsctl status` of the run that the hub's copy was made of."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hub_server import TOKEN, Hub, hub_server
from tests.tiny_run import write_checkpoint, write_run
from tests.unit.cli.called import Answer, started
from tests.unit.transfer.hub.far_runs import log_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    write_run(folder)
    write_checkpoint(folder, 40, 1280)
    (folder / "output" / "logs").mkdir()
    (folder / "output" / "logs" / "main_log.txt").write_bytes(log_of(45))
    return folder


@pytest.fixture
def hub(tmp_path: Path, run: Path) -> Iterator[Hub]:
    """Its copy, as `hub sync` lays it out."""
    output = run / "output"
    with hub_server(tmp_path / "hub") as served:
        served.make_repo("lab/run", private=True)
        paths = [path for folder in ("logs", "checkpoints") for path in (output / folder).rglob("*") if path.is_file()]
        served.commit("lab/run", {str(path.relative_to(output)): path.read_bytes() for path in paths})
        yield served


def status(hub: Hub, folder: Path, *words: str) -> Answer:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPSCTL_", "SLURM_", "HF_"))}
    environment = {**kept, **hub.environment(hub.folder / "home"), "PATH": "/nonexistent"}
    return started(folder, "status", *words, environment=environment)


def told(done: Answer, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)[key]
    return found


def test_from_afar_the_log_and_the_checkpoints_say_what_they_say_at_hand(hub: Hub, run: Path, tmp_path: Path) -> None:
    near = told(status(hub, run, "--json"), "status")
    far = told(status(hub, tmp_path, "--hub", "lab/run", "--json"), "far_status")
    assert far["speed"] == near["speed"]
    assert far["loss"]["iteration"] == near["loss"]["iteration"] == 45
    assert far["loss"]["lm_loss"] == near["loss"]["lm_loss"]
    assert far["progress"]["iteration"] == near["progress"]["iteration"]
    assert far["checkpoint"]["iteration"] == near["checkpoint"]["iteration"] == 40
    assert "queue" in far["not_known"]


def test_the_screen_fits_and_shows_no_token(hub: Hub, tmp_path: Path) -> None:
    done = status(hub, tmp_path, "--hub", "lab/run")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(r"lab/run  .*0:0", done.stdout)
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert TOKEN not in done.stdout


@pytest.mark.parametrize("words", [["--watch"], ["--all"], ["some-run"], ["--cluster", "x"]])
def test_what_the_hub_cannot_tell_is_not_asked_of_it(hub: Hub, tmp_path: Path, words: list[str]) -> None:
    done = status(hub, tmp_path, "--hub", "lab/run", *words)
    assert done.returncode == 2 and "--hub" in done.stderr
    assert hub.asked() == []
