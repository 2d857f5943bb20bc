from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec import structs

from opsctl.core.account import account_and_host
from opsctl.core.errors import SlurmError, SlurmUnreachable
from opsctl.core.timestamps import now
from opsctl.jobs.background.submission import script_of
from opsctl.jobs.evaluation.jobs import AskedEvaluation, ask_for, sbatch_options
from opsctl.jobs.evaluation.records import Evaluated, append, read
from opsctl.run.config.schema import EvaluationTable
from tests.unit.jobs.background.sent import a_command, a_place
from tests.unit.jobs.background.slurm_in_a_file import SlurmInAFile
from tests.unit.jobs.evaluation.evaluated_runs import a_run, due, paths_of
from tests.unit.jobs.scheduler.slurm_in_memory import SlurmInMemory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return a_run(tmp_path / "run", 10, 20)


def asked(folder: Path, slurm: SlurmInMemory, step: int = 10, of: str = "mine", again: bool = False) -> AskedEvaluation:
    """As a user whose commands are in the folder `of` asks."""
    command = a_command(folder, "evaluate", "run.toml", "--step", str(step))
    place = a_place(folder.parent / of)
    place.root.parent.mkdir(exist_ok=True)
    return ask_for(paths_of(folder), "judged", due(folder, step), command, place, slurm, again)


def test_however_often_it_is_asked_there_is_one_job_for_a_checkpoint(folder: Path) -> None:
    slurm = SlurmInMemory()
    first, second, other = asked(folder, slurm), asked(folder, slurm), asked(folder, slurm, 20)
    assert (first.job_id, second.job_id, other.job_id) == (101, 0, 102)
    assert first.errand in second.why_not and len(slurm.scripts) == 2


def test_two_people_at_once_get_one_job(folder: Path, tmp_path: Path) -> None:
    begin, wait = os.pipe()[::-1]
    children = []
    for who in ("one", "other"):
        child = os.fork()
        if not child:
            os.close(begin)
            os.read(wait, 1)
            try:
                asked(folder, SlurmInAFile(tmp_path / "slurm"), of=who)
            finally:
                os._exit(0)
        children.append(child)
    os.close(begin)
    for child in children:
        os.waitpid(child, 0)
    assert len(SlurmInAFile(tmp_path / "slurm").scripts) == 1
    assert [line.what for line in read(paths_of(folder))] == ["asked"]


def test_a_job_that_is_gone_without_a_word_is_asked_for_again(folder: Path) -> None:
    slurm = SlurmInMemory()
    first = asked(folder, slurm)
    slurm.end(first.job_id, "NODE_FAIL")
    assert asked(folder, slurm).job_id == 102
    append_line(folder, "begun", errand=asked(folder, slurm, again=True).why_not.rpartition(" ")[2])
    assert asked(folder, slurm).job_id == 0  # it began, and Slurm has it
    slurm.end(102, "OUT_OF_MEMORY")
    assert asked(folder, slurm).job_id == 103


def test_what_slurm_refused_or_does_not_answer_to_leaves_nobody_waiting(folder: Path) -> None:
    slurm = SlurmInMemory(refuses="evaluate")
    with pytest.raises(SlurmError, match="refused"):
        asked(folder, slurm)
    assert [line.what for line in read(paths_of(folder))] == ["asked", "withdrawn"]
    slurm.refuses = ""
    assert asked(folder, slurm).job_id
    slurm.error = SlurmUnreachable("no answer")
    with pytest.raises(SlurmUnreachable):
        asked(folder, slurm)
    assert len(slurm.scripts) == 1


def test_somebody_elses_job_counts_where_slurm_hides_it_and_where_it_shows_it_is_gone(folder: Path) -> None:
    append_line(folder, "asked", errand="e1234567", by="somebody@far")
    assert "somebody@far" in asked(folder, SlurmInMemory(hides=True)).why_not
    assert asked(folder, SlurmInMemory(hides=False)).job_id == 101


def test_nobody_can_pass_another_accounts_job_off_as_the_one_that_was_asked_for(folder: Path) -> None:
    slurm = SlurmInMemory()
    first = asked(folder, slurm)
    slurm.queue = [structs.replace(job, user="somebody") for job in slurm.queue]
    assert asked(folder, slurm).job_id == first.job_id + 1


def test_the_job_asks_for_what_the_run_file_says_gpus_too(folder: Path, tmp_path: Path) -> None:
    table = EvaluationTable(gpus=8, partition="gpu_p5", time="5:00:00", account="six@a100")
    script = script_of(a_place(tmp_path), a_command(folder, given=sbatch_options(table)))
    for line in ("gpus-per-node=8", "partition=gpu_p5", "time=5:00:00", "account=six@a100"):
        assert f"#SBATCH --{line}\n" in script


def append_line(folder: Path, what: str, errand: str, by: str = "") -> None:
    of = due(folder, 10).of
    line = Evaluated(iteration=10, what=what, of=of, at=now(), errand=errand, by=by or account_and_host())  # type: ignore[arg-type]
    append(paths_of(folder), line)
