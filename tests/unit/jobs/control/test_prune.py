"""Removing checkpoints that the policy does not keep."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from opsctl.core.errors import OpsctlError
from opsctl.jobs.control import prune as pruning
from opsctl.jobs.control.prune import Plan, plan_prune, prune
from opsctl.run.checkpoints.adopted import adopt, prepare
from opsctl.run.checkpoints.retention import Answers
from opsctl.run.checkpoints.rollbacks import read_prunes
from opsctl.run.config.load import load_run_file
from opsctl.run.config.program import program_of
from opsctl.run.state import lease
from opsctl.run.state.checkpoint_readers import reading
from opsctl.run.state.revisions import publish
from opsctl.run.state.run_view import RunView
from tests.killed_in_python import killed_at_every_step
from tests.tiny_run import ready
from tests.unit.jobs.control.checkpoint_runs import asks_nobody, care_run, latest, save, seen, there, two_at_once
from tests.unit.trainer.formats.attempt.test_lease import held_by_a_stopped_process
from trainer.formats.checkpoint.manifest import fault_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that keeps its last two, with six checkpoints."""
    care_run(tmp_path)
    for iteration in range(10, 70, 10):
        save(tmp_path, iteration)
    return tmp_path


def prune_now(folder: Path) -> pruning.Done:
    return prune(seen(folder), lambda _line: None, asks_nobody)


def once_it_is_decided(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen between what a prune decides under its lock and what it does then."""

    def decide(run: RunView, answers: Answers | None = None, before_run: bool = False) -> Plan:
        decided = plan_prune(run, answers, before_run)
        if answers is not None:
            act()
        return decided

    monkeypatch.setattr(pruning, "plan_prune", decide)


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "output" / "checkpoints").iterdir()}


def test_what_the_policy_does_not_keep_is_gone_and_on_record(folder: Path) -> None:
    save(folder, 25, pinned=True)
    (folder / "output" / "checkpoints" / "latest").write_text("global_step60")
    said: list[str] = []
    done = prune(seen(folder), said.append, asks_nobody)
    assert done.removed == (10, 20, 30, 40) and done.problems == ()
    assert there(folder) == [25, 50, 60] and "global_step10" in said[0]
    assert names(folder) == {"latest", "prunes.jsonl", "global_step25", "global_step50", "global_step60"}
    assert [one.iteration for one in read_prunes(seen(folder).paths)] == [10, 20, 30, 40]


PROGRAM = """
[run]
name = "ddp"

[slurm]
nodes = 1
gpus_per_node = 1
time = "1:00:00"

[program]
command = ["torchrun", "train.py"]
checkpoints = "saved/step-*.pt"
steps = 100

[retention]
last = 2
full_percent = 0
"""


def test_a_programs_own_checkpoint_goes_too_unless_it_was_saved_again(tmp_path: Path) -> None:
    run_file, saved = tmp_path / "run.toml", tmp_path / "saved"
    run_file.write_text(PROGRAM)
    run = ready(load_run_file(run_file))
    publish(run)
    program = program_of(run.file, tmp_path)
    assert program is not None and prepare(run.paths, program) is None
    saved.mkdir()
    for step in (10, 20, 30, 40):
        torch.save({"step": step}, saved / f"step-{step}.pt")
    adopt(run.paths, program, settled_s=0.0)
    torch.save({"step": 20, "again": 1}, saved / "step-20.pt")
    done = prune_now(tmp_path)
    assert (done.removed, done.problems) == ((10, 20), ())
    assert sorted(one.name for one in saved.iterdir()) == ["step-20.pt", "step-30.pt", "step-40.pt"]
    assert [one.iteration for one in adopt(run.paths, program, settled_s=0.0)] == [20]


def test_what_was_there_before_the_run_goes_only_if_it_is_asked_for(tmp_path: Path) -> None:
    run_file, saved = tmp_path / "run.toml", tmp_path / "saved"
    run_file.write_text(PROGRAM.replace("steps =", 'existing = "continue"\nsteps ='))
    run = ready(load_run_file(run_file))
    publish(run)
    program = program_of(run.file, tmp_path)
    saved.mkdir()
    for step in (10, 20):
        torch.save({"step": step}, saved / f"step-{step}.pt")
    assert program is not None and prepare(run.paths, program) == saved / "step-20.pt"
    for step in (30, 40, 50):
        torch.save({"step": step}, saved / f"step-{step}.pt")
    adopt(run.paths, program, settled_s=0.0)
    assert prune_now(tmp_path).removed == (30,)
    assert sorted(one.name for one in saved.iterdir()) == [f"step-{step}.pt" for step in (10, 20, 40, 50)]
    done = prune(seen(tmp_path), lambda _line: None, asks_nobody, before_run=True)
    assert done.removed == (10, 20) and len(list(saved.iterdir())) == 2


def test_a_path_that_the_programs_pattern_does_not_match_stays(tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text(PROGRAM)
    publish(ready(load_run_file(run_file)))
    other = tmp_path / "data.pt"
    other.write_bytes(b"data")
    original = {"path": str(other), "bytes": 4, "changed_at": other.stat().st_mtime}
    for step in (10, 20, 30):
        save(tmp_path, step, original=original)
    assert prune_now(tmp_path).removed == (10,) and other.exists()


def test_nothing_goes_where_nothing_says_what_stays(folder: Path) -> None:
    run_file = folder / "run.toml"
    run_file.write_text(run_file.read_text().replace("last = 2\nfull_percent = 0", "last = 15"))
    (warning,) = plan_prune(seen(folder)).warnings
    assert "[retention]" in warning and "opsctl revise" in warning
    shutil.rmtree(folder / "output" / ".opsctl" / "revisions")
    run_file.write_text(run_file.read_text().replace("[retention]\nlast = 15", ""))
    with pytest.raises(OpsctlError, match=r"tiny .*\[retention\]"):
        prune_now(folder)
    assert len(there(folder)) == 6


@pytest.mark.parametrize("damage", ["latest", "manifest", "file"])
def test_nothing_goes_where_it_is_not_sure_what_the_training_goes_on_from(folder: Path, damage: str) -> None:
    checkpoints = folder / "output" / "checkpoints"
    if damage == "latest":
        (checkpoints / "latest").unlink()
    elif damage == "manifest":
        (checkpoints / "global_step60" / "manifest.json").write_text("{")
    else:
        (checkpoints / "global_step60" / "layer_01-model_00-model_states.pt").unlink()
    with pytest.raises(OpsctlError, match="latest" if damage == "latest" else "global_step60"):
        prune_now(folder)
    assert len(there(folder)) == 6


def test_what_is_not_complete_or_a_link_stays_and_counts_for_none(folder: Path) -> None:
    checkpoints = folder / "output" / "checkpoints"
    (checkpoints / "global_step50" / "manifest.json").unlink()
    elsewhere = folder / "elsewhere"
    (checkpoints / "global_step20").rename(elsewhere)
    (checkpoints / "global_step20").symlink_to(elsewhere)
    assert prune_now(folder).removed == (10, 30)
    assert (
        there(folder) == [20, 40, 50, 60]
        and fault_of(elsewhere) is not None
        and (elsewhere / "manifest.json").is_file()
    )


def test_two_checkpoints_with_nan_do_not_let_the_last_finite_ones_go(folder: Path) -> None:
    for iteration in (70, 80):
        save(folder, iteration, not_finite="rank 0 holds weights that are not finite")
    prune_now(folder)
    assert there(folder) == [50, 60, 70, 80]


def test_a_link_inside_a_checkpoint_leads_nobody_out_of_it(folder: Path) -> None:
    outside = folder / "outside"
    outside.mkdir()
    (outside / "precious").write_text("1")
    (folder / "output" / "checkpoints" / "global_step10" / "linked").symlink_to(outside)
    assert 10 in prune_now(folder).removed
    assert (outside / "precious").read_text() == "1"


def test_a_training_that_publishes_meanwhile_is_waited_for_and_its_latest_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_is_saved() -> None:
        old = folder / "output" / "checkpoints" / "global_step40"
        shutil.rmtree(old)
        save(folder, 40, consumed_valid_samples=1)  # the same name, another one: as after a repoint to 30
        save(folder, 70)

    once_it_is_decided(monkeypatch, one_is_saved)
    done = prune_now(folder)
    (problem,) = done.problems
    assert problem.startswith("global_step40 ")
    assert there(folder) == [40, 50, 60, 70] and latest(folder) == "global_step70"


def test_where_the_latest_goes_back_meanwhile_nothing_goes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_training_falls_back = partial((folder / "output" / "checkpoints" / "latest").write_text, "global_step40")
    once_it_is_decided(monkeypatch, a_training_falls_back)
    with pytest.raises(OpsctlError, match="latest"):
        prune_now(folder)
    assert len(there(folder)) == 6


def test_on_a_full_disk_it_makes_room_and_puts_that_on_record_afterwards(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("a small disk of one's own needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "none", disk], capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        care_run(disk)
        for iteration in range(10, 50, 10):
            save(disk, iteration)
        with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            while True:
                file.write(b"x" * 4096)
        assert prune_now(disk).removed == (10, 20)
        assert there(disk) == [30, 40]
        assert [one.iteration for one in read_prunes(seen(disk).paths)] == [10, 20]
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_who_publishes_has_the_lease_and_is_not_disturbed(folder: Path) -> None:
    paths = seen(folder).paths
    own = lease.take(paths, "attempt", 1, "ada", lambda _held: None)
    assert isinstance(own, lease.OwnLease)
    with held_by_a_stopped_process(paths.lease):
        with pytest.raises(OpsctlError, match=r"tiny.*lease"):
            prune(seen(folder), lambda _line: None, asks_nobody, lease_wait_s=0.1)
        assert len(there(folder)) == 6
    assert prune_now(folder).removed == (10, 20, 30, 40)


def test_a_checkpoint_that_a_chain_is_told_to_load_stays(folder: Path) -> None:
    run = seen(folder)
    chain = {"chain": 7, "submitted_at": "2026-01-01T00:00:00Z", "user": "ada", "array": "1-2%1"}
    told = {**chain, "chain": 20, "arguments": ["--load-step", "20"]}
    lines = [*({**chain, "chain": number} for number in range(8, 20)), told]  # the newest of many
    run.paths.chains.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert prune_now(folder).removed == (10, 30, 40)


def test_a_checkpoint_that_somebody_is_sending_stays_until_that_is_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = seen(folder).paths
    with reading(paths, 10, "backup"):
        assert [one.kept.iteration for one in plan_prune(seen(folder)).going] == [20, 30, 40]
        first = plan_prune(seen(folder)).verdicts[0]
        assert (first.iteration, len(first.reasons), first.goes) == (10, 1, False)
        with contextlib.ExitStack() as begun:
            once_it_is_decided(monkeypatch, lambda: begun.enter_context(reading(paths, 20, "backup")))
            done = prune_now(folder)
            (problem,) = done.problems
            assert problem.startswith("global_step20 ")
            assert there(folder) == [10, 20, 50, 60]
            monkeypatch.undo()
    prune_now(folder)
    assert there(folder) == [50, 60]


def test_two_at_once_take_each_checkpoint_once(folder: Path) -> None:

    two_at_once(lambda: prune_now(folder))
    assert there(folder) == [50, 60]
    assert [one.iteration for one in read_prunes(seen(folder).paths)] == [10, 20, 30, 40]


def test_killed_at_any_step_it_leaves_whole_checkpoints_and_the_next_one_clears_up(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    care_run(folder)

    def begin() -> None:
        for iteration in (10, 20, 30, 40):
            save(folder, iteration)

    begin()
    steps = 0
    for steps in killed_at_every_step(lambda: prune_now(folder)):
        checkpoints = folder / "output" / "checkpoints"
        for iteration in there(folder):
            assert fault_of(checkpoints / f"global_step{iteration}") is None, f"half of one after step {steps}"
        assert latest(folder) == "global_step40" and {30, 40} <= set(there(folder))
        prune_now(folder)
        assert names(folder) == {"latest", "prunes.jsonl", "global_step30", "global_step40"}
        begin()
    assert steps > 10
