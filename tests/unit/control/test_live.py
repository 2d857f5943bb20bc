"""What may not be started: a training at its end or stopped by its kill switch, or beside what Slurm has fixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from opsctl.control import live
from opsctl.errors import OpsctlError
from opsctl.records import revisions
from opsctl.runs.expanded import ExpandedRun
from opsctl.runs.load import load_run_file
from tests.tiny_run import expand, write_checkpoint, write_run
from tests.unit.control.test_overlap import REST, RUNNING


def run_in(folder: Path) -> ExpandedRun:
    return expand(load_run_file(write_run(folder, train_samples=4000), {}))


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
        live.refuse_to_start(run)
        return
    with pytest.raises(OpsctlError, match=f"tiny is finished: global_step10 has consumed {consumed} samples"):
        live.refuse_to_start(run)


def test_a_triggered_kill_switch_refuses(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    live.refuse_to_start(run)
    run.paths.output.mkdir()
    run.paths.kill_switch.touch()
    with pytest.raises(OpsctlError, match=r"kill switch of tiny is triggered .*opsctl kill-switch deactivate first"):
        live.refuse_to_start(run)


def test_what_slurm_has_fixed_for_queued_tasks_is_not_published_beside_them(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    revisions.publish(run)
    wider = replace(run, file=msgspec.structs.replace(run.file, slurm=msgspec.structs.replace(run.file.slurm, nodes=4)))
    live.refuse_what_slurm_has_fixed(run, [REST])
    live.refuse_what_slurm_has_fixed(wider, [RUNNING])
    with pytest.raises(OpsctlError, match=r"\[slurm\] nodes changed, .*opsctl revise --resubmit replaces them"):
        live.refuse_what_slurm_has_fixed(wider, [REST])
