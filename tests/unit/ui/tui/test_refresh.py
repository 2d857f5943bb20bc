"""Test which run the screen that stays is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.run.config.locate import remember_run
from opsctl.ui.tui.refresh import OneRun

BROKEN = '[run]\nname = "mine"\noutput = "output"\n\n[trainer]\nnum_layers = "four"\n'


@pytest.mark.parametrize("how", ["variable", "name", "folder", "file", "here"])
def test_a_broken_run_file_is_shown_as_the_run_that_was_meant_and_no_other(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("OPSCTL_RUN", raising=False)
    meant, other = tmp_path / "runs" / "mine" / "run.toml", tmp_path / "other" / "run.toml"
    for file in (meant, other):
        file.parent.mkdir(parents=True)
    meant.write_text(BROKEN)
    other.write_text(BROKEN.replace("mine", "other"))
    monkeypatch.chdir(other.parent)
    chosen = {"name": "mine", "folder": "../runs/mine", "file": "../runs/mine/run.toml"}.get(how)
    if how == "variable":
        monkeypatch.setenv("OPSCTL_RUN", str(meant.parent))
    if how == "name":
        remember_run("mine", meant)
    if how == "here":
        meant = other
    watched = OneRun(chosen, None)
    monkeypatch.setenv("OPSCTL_RUN", str(tmp_path / "elsewhere"))
    watched.look()
    assert watched.lines(80, 24, False)[0].startswith("mine" if meant.parent.name == "mine" else "other")
