"""Calling opsctl in this process as a person in a run's folder does, where there is no Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.cli import main


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
