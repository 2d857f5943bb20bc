"""`opsctl refill` where there is no Slurm, or nothing to refill. With one: tests/cluster/test_refill.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.core.timestamps import now
from opsctl.run.config.load import load_run_file
from opsctl.run.config.locate import known_runs
from opsctl.run.state.chains import SUBMIT, Chain, append_chain
from opsctl.run.state.revisions import publish
from tests.printed_json import printed
from tests.tiny_run import ready, write_checkpoint, write_run
from tests.unit.cli.called import go_into, opsctl


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return go_into(tmp_path, monkeypatch)


def submitted(folder: Path, name: str = "tiny") -> None:
    run = load_run_file(write_run(folder, name=name))
    publish(ready(run))
    append_chain(run.paths, Chain(chain=12, submitted_at=now(), user="ann", array="1-3%1", how=SUBMIT))


def test_nobody_starts_what_was_never_submitted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(folder)
    assert opsctl("refill") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("tiny: ") and not (folder / "output").exists()


def test_a_slurm_that_does_not_answer_needs_somebody(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    submitted(folder)
    assert opsctl("refill", "--json") == 1
    (value,) = printed("refill", capsys.readouterr().out)
    assert (value["state"], value["needs_somebody"], value["submitted"]) == ("stuck", True, [])
    assert value["text"].startswith("tiny: ") and "squeue" in value["text"]


def test_one_run_that_fails_stops_no_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two", "three"):
        submitted(folder / name, name)
        opsctl("refill", "--run", str(folder / name))
    capsys.readouterr()
    (folder / "one" / "run.toml").write_text("not toml")
    write_checkpoint(folder / "two", 500, 4000)
    assert sorted(known_runs()) == ["one", "three", "two"]
    assert opsctl("refill", "--all-runs") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("one: ") and lines[1].startswith("three: ") and "squeue" in lines[1]
    assert lines[2].startswith("two: finished")
