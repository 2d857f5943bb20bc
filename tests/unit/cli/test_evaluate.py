from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from opsctl.cli import evaluate, selection
from opsctl.core.timestamps import now
from opsctl.jobs.evaluation.records import Evaluated, append
from opsctl.run.state.run_view import view
from tests.printed_json import printed
from tests.unit.cli.called import Answer, answer
from tests.unit.jobs.evaluation.evaluated_runs import a_run, due, paths_of, ran


def opsctl(*words: str, cwd: Path, code: int = 0) -> Answer:
    done = answer(cwd, *words, environment=os.environ)
    assert done.returncode == code, done.stderr
    return done


def test_what_is_due_is_told_and_nothing_is_begun(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 5, 10, 20, tasks=["cats", "sst2"])
    done = opsctl("evaluate", "--dry-run", "--json", cwd=folder)
    assert [(one["iteration"], one["state"]) for one in printed("evaluate", done.stdout)] == [
        (10, "would evaluate"),
        (20, "would evaluate"),
    ]
    assert ran(folder) == [] and not (folder / "output" / ".opsctl").exists()


def test_a_dry_run_of_jobs_prints_a_script_for_each_that_asks_for_what_the_run_file_says(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 10, 20, more='every = 10\ngpus = 8\ntime = "9:00:00"')
    script = opsctl("evaluate", "--job", "--dry-run", "--time", "5:00:00", cwd=folder).stdout
    assert script.count("#!/bin/bash") == 2
    assert script.count("#SBATCH --gpus-per-node=8\n") == script.count("#SBATCH --time=5:00:00\n") == 2


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("every = -1", r"\[evaluation\] every = -1"),
        ('batch_size = "0"', r'\[evaluation\] batch_size = "0".*"auto"'),
        ('model_args = ["parallelize"]', r'\[evaluation\] model_args = "parallelize".*"name=value"'),
        ('dtype = "int8"', r'\[evaluation\] dtype = "int8".*bfloat16.*float16'),
        ('time = "soon"', r'\[evaluation\] time = "soon"'),
    ],
)
def test_values_that_cannot_be_are_refused_by_name(tmp_path: Path, more: str, problem: str) -> None:
    folder = a_run(tmp_path / "run", 10, more=more)
    assert re.search(problem, opsctl("evaluate", "--dry-run", cwd=folder, code=2).stderr)


def test_a_run_without_tasks_says_what_to_write(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 10, tasks=[])
    assert "[evaluation] tasks" in opsctl("evaluate", cwd=folder, code=1).stderr


def test_a_python_that_others_can_change_is_not_started(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\ntouch started\n")
    python.chmod(0o777)
    folder = a_run(tmp_path / "run", 10, more=f'every = 10\npython = "{python}"')
    done = opsctl("evaluate", cwd=folder, code=1)
    assert str(python) in done.stderr
    assert not (folder / "started").exists()


def test_what_others_can_write_into_the_run_file_is_not_loaded_whichever_python_it_is(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 10)
    (folder / "run.toml").chmod(0o666)
    done = opsctl("evaluate", cwd=folder, code=1)
    assert str(folder / "run.toml") in done.stderr
    assert ran(folder) == []


def test_what_is_missing_of_a_checkpoint_that_is_done_is_told_each_time(tmp_path: Path) -> None:
    folder = a_run(tmp_path / "run", 10)
    done(folder, "1 not in this lm-eval: unicorns")
    for words in (["--step", "10"], []):
        told = opsctl("evaluate", *words, cwd=folder, code=1).stderr
        assert "global_step10" in told and "unicorns" in told


def test_a_run_that_may_not_be_started_stops_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = (a_run(tmp_path / name, 10) for name in ("first", "second"))
    (first / "run.toml").chmod(0o666)
    done(second, "")
    runs = [(one.name, view(str(one / "run.toml"))) for one in (first, second)]
    monkeypatch.setattr(selection, "each_run", lambda *_: runs)
    with pytest.raises(SystemExit) as ended:
        evaluate.command(["--all-runs"])
    told = capfd.readouterr().err
    assert str(first / "run.toml") in told and "global_step10" in told
    assert ended.value.code == 1


def done(folder: Path, detail: str) -> None:
    line = Evaluated(iteration=10, what="done", of=due(folder, 10).of, at=now(), detail=detail)
    append(paths_of(folder), line)
