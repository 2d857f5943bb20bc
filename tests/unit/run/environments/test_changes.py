"""The messages of submit and revise on real environments that changed since the last attempt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.run.attempts.events import Attempt, append_opened
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import load_run_file
from opsctl.run.environments import changes
from opsctl.run.environments.changes import changes_since_last, environment_here
from tests.tiny_run import expand, write_run
from tests.tiny_wheel import install, make_venv, make_wheel
from trainer.formats.attempt.environment import ENVIRONMENT_FILE
from trainer.formats.json_text import json_file_text


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExpandedRun:
    """Return a run whose environment script uses a virtual environment and loads a module, whatever this shell has."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOADEDMODULES", "of/this/shell")
    monkeypatch.setenv("_LMFILES_", "/of/this/shell.lua")
    python = make_venv(tmp_path / "venv", make_wheel(tmp_path, "tiny", "1.0"))
    script = tmp_path / "env.sh"
    script.write_text(
        f'echo "Welcome to the cluster"\nexport PATH="{python.parent}:$PATH"\nexport LOADEDMODULES=cuda/12.4\n'
    )
    path = write_run(tmp_path)
    path.write_text(path.read_text().replace("[run]\n", '[run]\nenvironment = "env.sh"\n'))
    return expand(load_run_file(path))


def record_attempt(run: ExpandedRun) -> None:
    """Record an attempt of the run with the current environment."""
    found = environment_here(run).found
    assert found is not None and found.module_files == ()
    folder = run.paths.attempt_folder(7)
    folder.mkdir(parents=True)
    (folder / ENVIRONMENT_FILE).write_text(json_file_text(found))
    append_opened(run.paths, Attempt(number=1, id="a", job_id=7))


def test_before_any_attempt_and_where_nothing_changed_nothing_is_said(run: ExpandedRun) -> None:
    assert changes_since_last(run) == ()
    record_attempt(run)
    assert changes_since_last(run) == ()


def test_packages_and_modules_that_changed_are_one_line_and_this_shells_modules_are_not_the_jobs(
    run: ExpandedRun, tmp_path: Path
) -> None:
    record_attempt(run)
    install(tmp_path / "venv" / "bin" / "python", make_wheel(tmp_path, "tiny", "2.0"))
    script = tmp_path / "env.sh"
    script.write_text(script.read_text().replace("cuda/12.4", "cuda/12.6"))
    (line,) = changes_since_last(run)
    assert "attempt 1" in line and line.endswith(": tiny 1.0 -> 2.0, module cuda cuda/12.4 -> cuda/12.6")


def test_a_kernel_that_only_the_nodes_compiled_is_no_change(run: ExpandedRun) -> None:
    record_attempt(run)
    path = run.paths.attempt_folder(7) / ENVIRONMENT_FILE
    on_node = json.loads(path.read_text())
    path.write_text(json.dumps({**on_node, "kernels": {"adam.so": "aa"}, "driver": "550.54", "node": "x01"}))
    assert changes_since_last(run) == ()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exit 3", "exit code 3"),
        ("echo no-module >&2; exit 1", "no-module"),
        ("python() { echo words that are no JSON; }; export -f python; export PATH=/nowhere", "env"),
        ("sleep 600", " 1 s"),
    ],
)
def test_what_cannot_be_seen_from_here_is_said_with_its_reason(
    run: ExpandedRun, tmp_path: Path, body: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record_attempt(run)
    monkeypatch.setattr(changes, "environment_here", lambda run: environment_here(run, timeout_s=1.0))
    (tmp_path / "env.sh").write_text(body + "\n")
    (line,) = changes_since_last(run)
    assert "attempt 1 " in line and why in line
