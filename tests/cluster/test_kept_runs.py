"""Run folders that earlier builds left, as they left them: today's commands know them, and continue with them."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli import main
from tests.cluster.commands import Opsctl, open_folder
from tests.cluster.conftest import RunningCluster, wait_until
from tests.cluster.trainings import Training
from tests.kept import BUILDS, PARAMETERS, Build
from tests.printed_json import printed


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


class Run:
    """A kept run on today's cluster; commands run in this process, which has imported them once."""

    def __init__(self, cluster: RunningCluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opsctl = Opsctl(cluster, folder)
        monkeypatch.chdir(folder)
        for name, value in self.opsctl.environment().items():
            monkeypatch.setenv(name, value)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
            main(list(words))
        return int(stop.value.code or 0), out.getvalue(), err.getvalue()

    def json(self, command: str, *words: str) -> Any:
        code, out, err = self(*command.split(), *words, "--json")
        assert code == 0, err
        return printed(command, out)


@pytest.mark.parametrize("build", PARAMETERS)
def test_what_a_build_has_left_is_looked_at_and_gone_on_with(
    build: Build, local_cluster: RunningCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shot once, left through the kill switch, and lost with its cluster while it trained on."""
    run = Run(local_cluster, build.unpack(folder), monkeypatch)
    saved = int((folder / "run/output/checkpoints/latest").read_text().removeprefix("global_step"))

    status = run.json("status")
    assert (status["name"], status["submitted"], status["checkpoint"]["iteration"]) == ("kept", True, saved)
    assert status["checkpoint_problem"] is None

    attempts = run.json("attempts")
    assert [one["reason"] for one in attempts[:2]] == ["signal", "kill-switch"]
    assert attempts[0]["first_failure"]["rank"] == 1

    (listed,) = run.json("checkpoints list")
    assert (listed["iteration"], listed["latest"], listed["complete"]) == (saved, True, True), listed["problem"]
    (verified,) = run.json("checkpoints verify")
    assert verified["problems"] == []

    assert run.json("triage", "1")["reason"] == "signal"
    (told,) = run.json("on-call", "--since", "2026-01-01")
    assert told["problem"] is None and told["unread"] == []

    would = run.json("submit", "--dry-run", "--cluster", str(local_cluster.folder))
    assert "#SBATCH --array=1-4%1" in would["script"]
    assert run.json("revise", "--dry-run")["revision"] is None


@pytest.mark.nightly
def test_the_first_builds_run_is_submitted_again_and_trains_on(local_cluster: RunningCluster, folder: Path) -> None:
    training = Training(Opsctl(local_cluster, BUILDS[0].unpack(folder)))
    saved = max(training.iterations())
    training.submit("1-1", "--cluster", str(local_cluster.folder))
    training.wait_for_iteration(saved + 5)
    assert training.attempts()[-1]["state"] == "running"
    training.opsctl.ok("kill-switch", "trigger", "--reason", "enough")
    wait_until(lambda: training.attempts()[-1]["reason"] == "kill-switch", 60, "the training to leave")
