"""Test what may not be started: a training at its end or stopped by its kill switch, or beside what Slurm has fixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.jobs.control import live_jobs
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.load import load_run_file
from opsctl.run.state import chains, revisions
from opsctl.run.state.chains import Chain
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.types import Job
from tests.tiny_run import ready, write_checkpoint, write_run
from tests.unit.jobs.control.test_overlap import REST, RUNNING


def run_in(folder: Path) -> ExpandedRun:
    return ready(load_run_file(write_run(folder, train_samples=4000), {}))


@pytest.mark.parametrize(
    ("consumed", "one_off", "is_over"),
    [
        (3992, (), False),
        (3993, (), True),  # seven samples make no step of eight
        (4000, ("--train_sam=8000",), False),
        (80, ("--train-sam", "80"), True),
        (80, ("--train-samples", "80", "--train-sam", "88"), False),
    ],
)
def test_a_chain_is_refused_when_its_own_arguments_have_the_training_at_its_end(
    tmp_path: Path, consumed: int, one_off: tuple[str, ...], is_over: bool
) -> None:
    run = run_in(tmp_path).with_arguments(one_off)
    write_checkpoint(tmp_path, 10, consumed)
    if not is_over:
        live_jobs.refuse_to_start(run)
        return
    with pytest.raises(OpsctlError, match=rf"tiny.*global_step10.*\b{consumed}\b"):
        live_jobs.refuse_to_start(run)


def test_a_finished_program_is_refused_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        '[run]\nname = "ddp"\n[slurm]\nnodes = 1\ngpus_per_node = 1\ntime = "1:00:00"\n'
        '[program]\ncommand = ["torchrun", "train.py"]\nsteps = 10\n'
    )
    write_checkpoint(tmp_path, 10, 0)
    with pytest.raises(OpsctlError, match=r"global_step10.*\[program\] steps") as refused:
        live_jobs.refuse_to_start(ready(load_run_file(tmp_path / "run.toml")))
    assert "samples" not in str(refused.value)


def test_a_triggered_kill_switch_refuses(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    live_jobs.refuse_to_start(run)
    run.paths.output.mkdir(exist_ok=True)
    run.paths.kill_switch.touch()
    with pytest.raises(OpsctlError, match=r"tiny.*opsctl kill-switch deactivate"):
        live_jobs.refuse_to_start(run)


def test_whose_revisions_queued_tasks_take_is_fixed_in_their_script(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    revisions.publish(run)
    table = msgspec.structs.replace(run.file.run, publish="owner")
    closed = replace(run, file=msgspec.structs.replace(run.file, run=table))
    live_jobs.refuse_what_slurm_has_fixed(closed, [RUNNING])
    with pytest.raises(OpsctlError, match=r"^\[run\] publish .*--resubmit"):
        live_jobs.refuse_what_slurm_has_fixed(closed, [REST])


def test_after_a_damaged_revision_what_is_fixed_is_what_the_one_before_says(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    revisions.publish(run)
    slurm = msgspec.structs.replace(run.file.slurm, nodes=4)
    wider = replace(run, file=msgspec.structs.replace(run.file, slurm=slurm))
    (revisions.publish(wider).folder / "run.json").unlink()
    live_jobs.refuse_what_slurm_has_fixed(run, [REST])
    with pytest.raises(OpsctlError, match=r"\[slurm\] nodes"):
        live_jobs.refuse_what_slurm_has_fixed(wider, [REST])


def test_what_slurm_has_fixed_for_queued_tasks_is_not_published_beside_them(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    revisions.publish(run)
    wider = replace(run, file=msgspec.structs.replace(run.file, slurm=msgspec.structs.replace(run.file.slurm, nodes=4)))
    live_jobs.refuse_what_slurm_has_fixed(run, [REST])
    live_jobs.refuse_what_slurm_has_fixed(wider, [RUNNING])
    with pytest.raises(OpsctlError, match=r"\[slurm\] nodes.*opsctl revise --resubmit"):
        live_jobs.refuse_what_slurm_has_fixed(wider, [REST])


class Hiding:
    """A Slurm that shows no one's jobs but one's own, of which there are none."""

    def jobs(self, users: Any = None, job_ids: Any = None) -> list[Job]:
        return []

    def hides_others_jobs(self) -> bool:
        return True


def test_somebody_elses_submission_that_was_cut_off_stays_open_where_his_jobs_are_hidden(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    revisions.publish(run)
    paths = run.paths
    chain = Chain(chain=0, token="t", submitted_at=now(), user="bob", array="1-3%1")
    chains.write_submitting(paths, chain)
    seen = live_jobs.settled(paths, Cluster(), cast(SlurmClient, Hiding()))
    assert [(one.array_job_id, one.user) for one in seen.unseen] == [(0, "bob")]
    assert chains.read_submitting(paths) == chain
    chains.write_submitting(paths, msgspec.structs.replace(chain, user=account_name()))
    assert live_jobs.settled(paths, Cluster(), cast(SlurmClient, Hiding())).unseen == ()
    assert chains.read_submitting(paths) is None
