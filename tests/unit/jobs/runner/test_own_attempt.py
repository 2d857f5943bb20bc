"""Test how a task puts its attempt's end on record."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from opsctl.diagnosis.nodes.judging import ends_of
from opsctl.diagnosis.nodes.node_evidence import read_node_evidence
from opsctl.diagnosis.triage import on_close
from opsctl.jobs.runner import own_attempt
from opsctl.jobs.runner.own_attempt import close
from opsctl.jobs.runner.task import Task
from opsctl.run.attempts import events
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt, append_opened, read
from opsctl.run.attempts.outcome import StepEnd
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.run.config.paths import RunPaths

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
HANG = Verdict(cause=Cause.HANG, summary="rank 5 on n1 is stopped", node="n1", rank=5, confidence=0.9)


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    paths = RunPaths(tmp_path / "out")
    paths.logs.mkdir(parents=True)
    return paths


def task_of(paths: RunPaths, said: list[str]) -> Task:
    return cast(Task, SimpleNamespace(paths=paths, log=SimpleNamespace(add_line=said.append)))


def ended(paths: RunPaths, reason: Ending, verdict: Verdict | None = None) -> Attempt:
    attempt = Attempt(number=1, id="7-a", job_id=7, nodes=("n0", "n1"), opened_at=NOON)
    append_opened(paths, attempt)
    return replace(attempt, closed_at=NOON, closed_by="job", reason=reason, exit_code=143, verdict=verdict)


def test_an_end_is_on_record_before_anybody_asks_what_it_was_and_then_with_the_answer(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Attempt] = []

    def judge(*_: object) -> Verdict:
        seen.extend(read(paths))
        return HANG

    monkeypatch.setattr(own_attempt, "verdict_of", judge)
    judged = close(task_of(paths, []), paths, ended(paths, Ending.FAILED), StepEnd(exit_code=1))
    assert [(one.reason, one.verdict) for one in seen] == [("failed", None)]
    assert judged.verdict == HANG and read(paths) == [judged]


@pytest.mark.parametrize("reason", [Ending.CANCELLED, Ending.PREEMPTED, Ending.TIME_LIMIT, Ending.SIGNAL])
def test_while_slurm_ends_the_job_a_verdict_is_waited_for_a_short_time(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, reason: Ending
) -> None:
    monkeypatch.setattr(own_attempt, "ENDING_S", 0.05)
    monkeypatch.setattr(on_close, "facts_of", lambda *_: time.sleep(30))
    said: list[str] = []
    step_end = StepEnd(exit_code=143, was_asked_to_end=reason == Ending.SIGNAL)
    close(task_of(paths, said), paths, ended(paths, reason), step_end)
    (line,) = said
    assert "opsctl triage" in line
    assert [(one.reason, one.verdict) for one in read(paths)] == [(reason, None)]


def test_a_hangs_own_verdict_is_told_counts_and_is_on_the_nodes_record(paths: RunPaths) -> None:
    said: list[str] = []
    hung = ended(paths, Ending.HANG, HANG)
    assert close(task_of(paths, said), paths, hung, StepEnd(exit_code=137)) == hung
    assert said == ["opsctl: triage: hang (rank 5 n1), confidence 0.90"]
    (seen,) = read_node_evidence(paths)
    assert (seen.node, seen.kind, seen.attempt) == ("n1", Cause.HANG, "7-a")
    assert [one.blamed for one in ends_of(read(paths))] == [frozenset()]


def test_a_record_that_cannot_be_written_is_said_and_tried_again_with_the_verdict(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, tries = ended(paths, Ending.HANG, HANG), list[Attempt]()

    def fail_once(_: RunPaths, attempt: Attempt) -> None:
        tries.append(attempt)
        if len(tries) == 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(events, "append_closed", fail_once)
    said: list[str] = []
    close(task_of(paths, said), paths, hung, StepEnd(exit_code=137))
    assert tries == [hung, hung] and "No space left on device" in said[0]
