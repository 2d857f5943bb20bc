"""`opsctl triage --stacks` of another member's job: that is asked for, and what its answer wrote is grouped.

Slurm and the job are stood in for; one's own job is asked in tests/cluster/test_hangs.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import triage_stacks
from opsctl.cli.triage_stacks import show_stacks
from opsctl.core.errors import OpsctlError
from opsctl.diagnosis.hangs.summary import written
from opsctl.jobs.control import requests as asking
from opsctl.run.attempts.events import Attempt, append_opened
from opsctl.run.state.requests import Audited, Request
from opsctl.run.state.run_view import RunView, glance
from tests.unit.cli.called import go_into
from tests.unit.diagnosis.hangs.ranks import stack, waits


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunView:
    go_into(tmp_path, monkeypatch)
    (tmp_path / "run.toml").write_text('[run]\nname = "small"\noutput = "out"\n')
    (tmp_path / "out").mkdir()
    seen = glance(".")
    append_opened(seen.paths, Attempt(number=1, id="a", job_id=13, array_job_id=12, array_task="1", nodes=("x1", "x2")))
    meant = asking.Meant(Request(action="stacks", owner="somebody else", job="12_1", attempt="a"), "12_1")
    monkeypatch.setattr(triage_stacks, "prepare", lambda *_: meant)
    monkeypatch.setattr(triage_stacks, "send", lambda *_: "abc")
    return seen


def answer(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    found = Audited(id="abc", **fields) if fields else None
    monkeypatch.setattr(triage_stacks, "wait_for_answer", lambda *_: found)


def test_somebody_elses_answer_is_grouped_and_an_odd_rank_is_exit_code_1(
    run: RunView, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run.paths.attempt_folder(13)
    folder.mkdir(parents=True)
    answer(monkeypatch, outcome="done", words="...")
    (folder / "stacks-abc.txt").write_text(written([waits(0), stack(1, "read", state="T", node="x2")]))
    assert show_stacks(run, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)["stacks"]
    assert (told["job"], told["found"], told["misses"]) == ("12_1", 2, "all_reduce")
    assert [group["ranks"] for group in told["groups"]] == ["1", "0"]
    (folder / "stacks-abc.txt").write_text(written([waits(0), waits(1)]))
    assert show_stacks(run, as_json=False) == 0
    assert capsys.readouterr().out.startswith("2 of 2 ranks (0-1): waits in all_reduce")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "opsctl request list"),
        ({"outcome": "failed", "words": "no answers"}, "failed: no answers"),
        ({"outcome": "done", "words": "done so"}, "stacks-"),
    ],
)
def test_without_an_answer_that_can_be_read_that_is_said(
    run: RunView, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], said: str
) -> None:
    answer(monkeypatch, **fields)
    with pytest.raises(OpsctlError, match=said):
        show_stacks(run, as_json=False)
