"""Test what a refill makes of a run's files and its queue. With a real Slurm: tests/cluster/test_refill.py."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.jobs.control import live_jobs
from opsctl.jobs.control.published import further_chain
from opsctl.jobs.control.refill import Files, Word, decide, per_task_s, read_files, refill
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.hidden_jobs import Unseen
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.run.config.load import load_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import SlurmTable
from opsctl.run.logs.records import Measured
from opsctl.run.state.chains import REFILL, REVISE, SUBMIT, Cancel, Chain, append_chain
from opsctl.run.state.identity import bind, make_run_id
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.run.state.revisions import publish
from opsctl.slurm.backends import client_for
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.types import Job
from tests.tiny_run import ready, write_run
from tests.unit.monitoring.jobs import HELD, NEVER, RUNNING, WAITING_FOR_CHAIN, pending
from trainer.formats.logs.training_line import TrainingLine

THIRD = pending("Dependency", 21, "1-3%1")
FULL = (RUNNING, WAITING_FOR_CHAIN, THIRD)
AT = now()


def chain(number: int, how: str = SUBMIT, **more: object) -> Chain:
    return Chain(chain=number, submitted_at=AT, user="ann", array="1-3%1", how=how, **more)  # type: ignore[arg-type]


def published(folder: Path, *chains: Chain, **run_file: object) -> RunPaths:
    """A run as a submit left it."""
    run = load_run_file(write_run(folder, **run_file), {})  # type: ignore[arg-type]
    publish(ready(run))
    for one in chains or (chain(12),):
        append_chain(run.paths, one)
    return run.paths


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return read_files(published(tmp_path))


def decided(files: Files, jobs: Sequence[Job], **seen: object) -> tuple[Word, int]:
    decision = decide(files, live_jobs.LiveJobs(jobs, jobs, **seen))  # type: ignore[arg-type]
    return decision.word, decision.arrays


def failed(number: int, at: datetime, made: bool = False) -> Attempt:
    end = 10 * number if made else None
    return Attempt(number=number, id=str(number), job_id=number, closed_at=at, reason="exit", checkpoint_at_end=end)


@pytest.mark.parametrize(
    ("jobs", "word", "arrays"),
    [
        ((), Word.MISSING, 1),
        ((RUNNING,), Word.MISSING, 2),
        ((RUNNING, WAITING_FOR_CHAIN), Word.MISSING, 1),
        (FULL, Word.ENOUGH, 0),
        ((RUNNING, HELD), Word.STUCK, 0),
        ((HELD,), Word.STUCK, 0),
        ((NEVER,), Word.STUCK, 0),
    ],
)
def test_the_queue_decides_how_many(files: Files, jobs: Sequence[Job], word: Word, arrays: int) -> None:
    assert decided(files, jobs) == (word, arrays)


def test_what_was_never_submitted_is_left_alone(files: Files) -> None:
    assert decided(replace(files, chains=()), ()) == (Word.RESTS, 0)


def test_a_finished_training_needs_no_more(files: Files) -> None:
    end = Checkpoint(Path("/o"), 500, 4000)
    assert decided(replace(files, checkpoint=end), ()) == (Word.RESTS, 0)


def test_a_triggered_kill_switch_is_somebodys_word(files: Files) -> None:
    switch = KillSwitchState(Path("/o/kill-switch"), True, True, by="ben", why="a spike")
    decision = decide(replace(files, switch=switch), live_jobs.LiveJobs((), ()))
    assert decision.word is Word.RESTS
    assert "kill switch" in decision.why and "ben" in decision.why and "a spike" in decision.why


@pytest.mark.parametrize("queued_only", [True, False])
def test_what_somebody_cancelled_stays_cancelled_until_somebody_submits(files: Files, queued_only: bool) -> None:
    cancelled = replace(files, cancels=(Cancel(at=AT, by="ben", chains=1, queued_only=queued_only),))
    assert decided(cancelled, ()) == (Word.RESTS, 0)
    assert decided(replace(cancelled, chains=(*files.chains, chain(13, REFILL))), ()) == (Word.RESTS, 0)
    assert decided(replace(cancelled, chains=(*files.chains, chain(13))), ()) == (Word.MISSING, 1)


def test_a_brake_that_holds_is_not_released_by_refilling(files: Files) -> None:
    later = AT + timedelta(hours=1)
    attempts = tuple(failed(number, later + timedelta(minutes=number)) for number in (1, 2, 3))
    failing = replace(files, attempts=attempts)
    assert decided(failing, ()) == (Word.STUCK, 0)
    refilled = Chain(chain=13, submitted_at=later + timedelta(hours=1), user="ann", array="1-3%1", how=REFILL)
    assert decided(replace(failing, chains=(*files.chains, refilled)), ()) == (Word.STUCK, 0)
    submitted = Chain(chain=13, submitted_at=later + timedelta(hours=1), user="ann", array="1-3%1", how=SUBMIT)
    assert decided(replace(failing, chains=(*files.chains, submitted)), ()) == (Word.MISSING, 1)
    assert decided(replace(failing, attempts=(*attempts, failed(4, later + timedelta(minutes=9), True))), ()) == (
        Word.MISSING,
        1,
    )


def test_arrays_that_end_before_any_attempt_are_not_followed_by_more_for_ever(files: Files) -> None:
    refilled = tuple(chain(number, REFILL) for number in range(13, 18))
    taken_out = replace(files, chains=(*files.chains, *refilled[:4]))
    assert decided(taken_out, ()) == (Word.MISSING, 1)
    in_vain = replace(files, chains=(*files.chains, *refilled))
    assert decided(in_vain, ()) == (Word.STUCK, 0)
    assert "13, 14, 15, 16, 17" in decide(in_vain, live_jobs.LiveJobs((), ())).why
    assert decided(replace(in_vain, attempts=(failed(17, AT + timedelta(hours=1)),)), ()) == (Word.MISSING, 1)
    assert decided(replace(in_vain, chains=(*in_vain.chains, chain(18))), ()) == (Word.MISSING, 1)


def test_refilled_arrays_that_wait_are_not_taken_for_ended(files: Files) -> None:
    numbers = (RUNNING.array_job_id, WAITING_FOR_CHAIN.array_job_id, THIRD.array_job_id)
    waiting = replace(files, chains=(*files.chains, *(chain(number, REFILL) for number in numbers)))
    assert decided(waiting, FULL) == (Word.ENOUGH, 0)
    assert decided(waiting, FULL[:2]) == (Word.MISSING, 1)


def test_what_cannot_be_seen_is_not_taken_for_nothing(files: Files) -> None:
    assert decided(files, (), unseen=(Unseen(12, "ann"),)) == (Word.STUCK, 0)


def test_the_end_of_the_training_bounds_what_is_queued(files: Files) -> None:
    # 4,000 samples at one a second; a task trains 9 minutes of its 10, three to an array: 540 s x 3 = 1,620 s.
    last = TrainingLine(iteration=400, total_iterations=500, consumed_samples=3200)
    slow = replace(files, measured=Measured(last_iteration=last, samples_per_second=1.0))
    assert decided(slow, (RUNNING,)) == (Word.MISSING, 1)
    assert decided(slow, (RUNNING, WAITING_FOR_CHAIN)) == (Word.ENOUGH, 0)
    farther = replace(slow, measured=Measured(last_iteration=last, samples_per_second=0.25))
    assert decided(farther, (RUNNING, WAITING_FOR_CHAIN)) == (Word.MISSING, 1)


def test_a_task_trains_for_its_time_less_what_it_keeps_for_leaving() -> None:
    assert per_task_s(SlurmTable(nodes=1, gpus_per_node=1, time="20:00:00", exit_margin="15:00")) == 71_100.0
    assert per_task_s(SlurmTable(nodes=1, gpus_per_node=1, time="10:00", exit_margin="15:00")) == 0.0


def test_a_copy_of_a_run_is_not_refilled(tmp_path: Path) -> None:
    paths = published(tmp_path)
    bind(paths, make_run_id(paths))
    copy = tmp_path / "copy"
    shutil.copytree(paths.output, copy)
    with pytest.raises(OpsctlError, match="copy"):
        refill(RunPaths(copy), Cluster(), client_for(Cluster()))


@pytest.mark.parametrize(("keep", "expected"), [(0, (Word.RESTS, 0)), (1, (Word.MISSING, 1)), (5, (Word.MISSING, 5))])
def test_as_many_are_kept_as_is_published(tmp_path: Path, keep: int, expected: tuple[Word, int]) -> None:
    path = write_run(tmp_path)
    text = path.read_text()
    path.write_text(text.replace("[array]\n", f"[array]\nkeep_queued = {keep}\n"))
    run = load_run_file(path, {})
    publish(ready(run))
    append_chain(run.paths, chain(12))
    path.write_text(text.replace("[array]\n", "[array]\nkeep_queued = 9\n"))  # an edit that no one published
    assert decided(read_files(run.paths), (RUNNING,)) == expected


def test_a_further_chain_is_as_long_as_the_last_that_somebody_typed_and_on_its_nodes(tmp_path: Path) -> None:
    typed = chain(12, exclude="x3", nodes=1, arguments=("--exit-interval", "5"))
    rest = Chain(chain=13, submitted_at=AT, user="ann", array="3-3%1", how=REVISE, exclude="x4", nodes=1)
    further = further_chain(published(tmp_path, typed, rest))
    wish = further.options()
    assert (wish.array, wish.exclude, wish.nodes, wish.arguments, wish.begin) == ("1-3%1", "x4", 1, (), None)
    assert wish.after == "auto" and further.run.layout.world_size == 2


def test_one_off_arguments_are_left_out_and_said(tmp_path: Path) -> None:
    further = further_chain(published(tmp_path, chain(12, arguments=("--exit-interval", "5"))))
    assert further.left_out == ("--exit-interval", "5") and "--exit-interval" not in further.run.arguments


def test_an_edit_that_nobody_published_changes_nothing(tmp_path: Path) -> None:
    paths = published(tmp_path, time="10:00")
    write_run(tmp_path, time="99:00", lr="5e-4")
    further = further_chain(paths)
    assert (further.run.file.slurm.time, further.run.options.lr) == ("10:00", 1e-3)


def test_a_damaged_revision_is_refused_by_name(tmp_path: Path) -> None:
    paths = published(tmp_path)
    folder = next(paths.revisions.iterdir())
    (folder / "run.json").unlink()
    with pytest.raises(OpsctlError, match=f"revision {folder.name} .*opsctl revise"):
        further_chain(paths)
    assert decided(read_files(paths), ()) == (Word.STUCK, 0)


def test_a_run_that_was_moved_away_from_where_it_is_published_is_refused(tmp_path: Path) -> None:
    paths = published(tmp_path)
    paths.output.rename(tmp_path / "elsewhere")
    with pytest.raises(OpsctlError, match=rf"{tmp_path}/output .*{tmp_path}/elsewhere.*\[run\] output.*opsctl revise"):
        further_chain(RunPaths(tmp_path / "elsewhere"))
