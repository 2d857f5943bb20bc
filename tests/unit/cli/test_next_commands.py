"""`opsctl` alone in the states of a run: no command that it recommends fails there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from opsctl.core.timestamps import now
from opsctl.run.attempts.events import Attempt, append_closed, append_opened, read
from opsctl.run.config.paths import RunPaths
from opsctl.ui.status import next_steps
from tests.tiny_run import write_checkpoint, write_run
from tests.unit.cli.test_any_state import SLURM, answer

#: Commands that do not return, or that change more than a test may, with what is tried in their place.
_INSTEAD = {
    "status --watch": "status",
    "logs --follow": "logs",
    "local-cluster up": "local-cluster up --help",
    "doctor": "doctor --help",
    "submit": "submit --dry-run",
    "export hf --output DIR": "export hf --output DIR --help",  # the checkpoint here has no weights
}
_GIVEN = {"NAME": "new", "DIR": "exported"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a Slurm whose queue is empty."""
    (tmp_path / "bin").mkdir()
    for name, text in SLURM.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("OPSCTL_ANSWERS_AGE", "0")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "account"))
    monkeypatch.delenv("OPSCTL_RUN", raising=False)
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path / "run")
    return tmp_path / "run"


def new(folder: Path) -> None:
    write_run(folder)


def submitted(folder: Path) -> None:
    new(folder)
    assert answer("submit")[0] == 0


def trained(folder: Path, reason: str | None, iteration: int = 50) -> None:
    submitted(folder)
    paths = RunPaths(folder / "output")
    attempt = Attempt(number=1, id="a", job_id=12, opened_at=now(), user="root", revision="x")
    append_opened(paths, attempt)
    paths.main_log.parent.mkdir(exist_ok=True)
    paths.main_log.write_text(" iteration 50/ 500 | elapsed time per iteration (s): 1.0 | lm loss: 1.0 |\n")
    write_checkpoint(folder, iteration, iteration * 8)
    if reason is not None:
        append_closed(paths, structs.replace(read(paths)[0], closed_at=now(), reason=reason, exit_code=1))


def killed(folder: Path) -> None:
    trained(folder, "kill-switch")
    assert answer("kill-switch", "trigger")[0] == 0


STATES: dict[str, Callable[[Path], object]] = {
    "no run": lambda _: None,
    "new": new,
    "submitted": submitted,
    "running": lambda folder: trained(folder, None),
    "failed": lambda folder: trained(folder, "failed"),
    "finished": lambda folder: trained(folder, "finished", 500),
    "killed": killed,
    "broken": lambda folder: (folder / "run.toml").write_text("[run\n"),
}


@pytest.mark.parametrize("state", STATES)
def test_no_recommended_command_is_refused(folder: Path, state: str) -> None:
    STATES[state](folder)
    code, text, problem = answer()
    assert (code, problem) == (0, "")
    commands = re.findall(r"^  opsctl (\S.*?)  ", text.partition("Next:")[2], re.MULTILINE)
    assert commands
    refused = {}
    for command in commands:
        words = [_GIVEN.get(word, word) for word in _INSTEAD.get(command, command).split()]
        code, _, problem = answer(*words)
        is_told = command == "plan" and state == "broken"  # it prints what is wrong, as promised
        if code and not is_told:
            refused[command] = problem or code
    assert refused == {}


def test_every_step_is_a_command_with_its_options() -> None:
    steps = [*next_steps._BEGIN, *next_steps._RUNNING, *next_steps._STOPPED, *next_steps._SICK]
    steps += [step for known in next_steps._BY_STATE.values() for step in known]
    for step in steps:
        code, out, problem = answer(*step.command.split()[1:], "--help")
        assert (code, problem) == (0, ""), step
        assert [word for word in step.command.split() if word.startswith("-") and word not in out] == [], step
