"""`opsctl attempts`, also where no Slurm is to be had."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from opsctl.cli import attempts
from opsctl.run.attempts.events import Attempt, append_closed, append_opened
from opsctl.run.config.paths import RunPaths
from tests.printed_json import printed
from tests.unit.cli.called import go_into, opsctl
from tests.unit.run.attempts.test_close_lost import StandIn, end
from trainer.formats.attempt.attempt_records import Failure

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    (tmp_path / "run.toml").write_text('[run]\nname = "small"\noutput = "out"\n')
    go_into(tmp_path, monkeypatch)
    paths = RunPaths(tmp_path / "out")
    paths.output.mkdir()
    return paths


def call(*words: str) -> int:
    return opsctl("attempts", *words)


def record(paths: RunPaths) -> None:
    first = Attempt(number=1, id="a", job_id=13, array_job_id=12, array_task="1", opened_at=NOON, iteration_at_start=40)
    append_opened(paths, first)
    killed = Failure(rank=3, node="x02", signal=9)
    ended = replace(first, reason="signal", exit_code=137, closed_at=NOON + timedelta(minutes=90), closed_by="job")
    append_closed(paths, replace(ended, first_failure=killed, iteration_at_end=61, checkpoint_at_end=60))
    append_opened(
        paths,
        Attempt(number=2, id="b", job_id=12, array_job_id=12, array_task="2", opened_at=NOON, iteration_at_start=60),
    )


def test_without_attempts_it_says_so_and_json_is_an_empty_list(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call() == 0
    assert capsys.readouterr().err == "no attempts yet\n"
    assert call("--json") == 0
    assert printed("attempts", capsys.readouterr().out) == []


def test_the_table_says_why_each_ended(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    record(paths)
    assert call() == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 3
    for words in ("12_1", "1:30:00", "40 -> 61", " 60 ", "signal", "137", "rank 3 on x02 ended by SIGKILL"):
        assert words in out[1]


def test_without_slurm_what_is_open_is_not_known(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    record(paths)
    assert call() == 0
    said = capsys.readouterr()
    assert "not known" in said.out.splitlines()[2] and "running" not in said.out
    assert said.err.count("\n") == 1
    call("--json")
    first, second = printed("attempts", capsys.readouterr().out)
    assert (first["state"], second["state"], second["reason"]) == ("ended", "not known", None)
    assert first["first_failure"]["rank"] == 3 and first["made_checkpoint"] is True


def test_another_cluster_that_is_asked_ends_nothing_on_record(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Job ids start over: there the same id ended at that time, and here the training goes on.
    append_opened(paths, Attempt(number=1, id="a", job_id=7, cluster="alps", opened_at=NOON))
    jura = StandIn(ends=[end(7, "NODE_FAIL", ended=1)])
    monkeypatch.setattr(jura, "configuration", lambda: {"ClusterName": "jura"})
    monkeypatch.setattr(attempts, "client_for", lambda *_: jura)
    assert call() == 0
    said = capsys.readouterr()
    assert "not known" in said.out and "node-failure" not in said.out
    assert said.err.count("\n") == 1 and "jura" in said.err and "alps" in said.err
    assert paths.attempts.read_text().count("\n") == 1
    monkeypatch.setattr(jura, "configuration", lambda: {"ClusterName": "alps"})
    assert call() == 0 and "node-failure" in capsys.readouterr().out
