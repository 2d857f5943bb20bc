"""`opsctl attempts --report`, without Slurm, whose word on the queue is then missing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.lines import AttemptStart, write_attempt_start
from opsctl.run.state.chains import Chain, append_chain
from tests.printed_json import printed
from tests.unit.cli.test_attempts import NOON, call, paths, record

__all__ = ["paths"]


def test_a_runs_time_is_told_by_its_parts_without_slurm(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    record(paths)
    submitted = NOON - timedelta(minutes=10)
    append_chain(paths, Chain(chain=12, submitted_at=submitted, user="ann", array="1-2%1"))
    start = AttemptStart(
        at=NOON, attempt=1, job="12_1", job_id=13, requeues=0, revision="r", iteration=40, nodes=("x01",)
    )
    paths.logs.mkdir()
    line = "[default1]: iteration 60/ 100 | consumed samples: 480 | elapsed time per iteration (s): 60.00 |"
    ready = f"[before the start of training step] datetime: {NOON + timedelta(minutes=5):%Y-%m-%d %H:%M:%S} +00:00"
    paths.main_log.write_text("\n".join([write_attempt_start(start), ready, line]) + "\n")
    assert call("--report", "--json") == 0
    told = printed("attempts", capsys.readouterr().out)
    parts = {f"{one['part']} {one['cause']}".strip(): one["wall_s"] for one in told["parts"]}
    assert parts["waited"] == 600.0, "the second attempt opened at the same moment"
    assert told["wall_s"] == pytest.approx(sum(parts.values())) and told["attempts"] == 2
    assert call("--report") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("since 2026-11-21T") and any(row.startswith("total") for row in shown)
    assert any(row.startswith("best save interval: ") for row in shown)


def test_before_the_first_submission_there_is_nothing_to_report(
    paths: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--report") == 0
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "3d"], "--report"),
        (["--report", "--since", "last"], "opsctl on-call"),
        (["--report", "--since", "tuesday"], "--since tuesday"),
    ],
)
def test_a_since_that_means_nothing_is_refused(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    record(paths)
    assert call(*words) == 2
    assert said in capsys.readouterr().err
