"""Calling opsctl as a person in a run's folder does, where there is no Slurm: mostly without starting a program."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from opsctl.cli import main
from tests.users import become


@dataclass(frozen=True)
class Answer:
    """The output of a command, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def go_into(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make `folder` the current one, with no Slurm on PATH and no run or cluster chosen; returns it."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("OPSCTL_CLUSTER", "OPSCTL_RUN"):
        monkeypatch.delenv(name, raising=False)
    return folder


def opsctl(*words: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    return int(stop.value.code or 0)


def without_slurm(folder: Path) -> dict[str, str]:
    """Return an environment that chooses no run, has no Slurm on PATH, and keeps the account's state in `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPSCTL_", "SLURM_"))}
    return {**kept, "PATH": "/nonexistent", "XDG_STATE_HOME": str(folder / "state")}


def answer(folder: Path, *words: str, environment: Mapping[str, str] | None = None) -> Answer:
    """Run a command in this process, with `folder` as the current one. The environment is by default without Slurm."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    found = without_slurm(folder) if environment is None else environment
    with (
        mock.patch.dict(os.environ, found, clear=True),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = opsctl(*words)
    return Answer(code, *(one.buffer.getvalue().decode() for one in (out, err)))


def forked(folder: Path, *words: str, environment: Mapping[str, str], user: str = "") -> Answer:
    """Run a command in a forked process, which may become another user and change signals and descriptors.

    This costs a tenth of starting an interpreter.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            code = 250
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                if user:
                    become(user)
                os.chdir(folder)
                os.environ.clear()
                os.environ.update(environment)
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    code = opsctl(*words)
                    out.flush()
                    err.flush()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for one in (out, err):
            one.seek(0)
        return Answer(code, out.read(), err.read())


def started(folder: Path, *words: str, environment: Mapping[str, str]) -> Answer:
    """Run a command as a program. A command that talks to a hub needs one: huggingface_hub settles itself at import."""
    command = [sys.executable, "-m", "opsctl", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    return Answer(done.returncode, done.stdout, done.stderr)
