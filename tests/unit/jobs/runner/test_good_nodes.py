"""On which nodes a job goes on after it has lost some."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import iso
from opsctl.diagnosis.probe.report import NodeReport, ProbeReport, Reason, Standing
from opsctl.jobs.runner import good_nodes
from opsctl.jobs.runner.good_nodes import TESTED_FOR, fewer_nodes, is_to_be_tested, restart_line, restarted_on
from opsctl.jobs.runner.own_attempt import new_attempt
from opsctl.jobs.runner.task import Allocation, Task, understood
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.restart import JobNow, after_failure
from opsctl.run.attempts.verdict import Cause, Verdict
from opsctl.run.config.load import load_run_file
from opsctl.run.state import revisions
from tests.tiny_run import ready, write_run
from tests.unit.jobs.runner.test_task import published, task_in
from trainer.recipe.options import Options

__all__ = ["published"]
NODES = ("x1", "x2", "x3", "x4")


@pytest.fixture
def task(published: Path) -> Task:
    """On two nodes of four."""
    return replace(task_in(published), allocation=Allocation(12, 11, "1", 0, NODES, "ann"), spare=2)


def ended(reason: Ending = Ending.NODE_FAILURE, lost: tuple[str, ...] = (), verdict: Verdict | None = None) -> Attempt:
    opened = datetime.now(UTC)
    attempt = Attempt(
        number=1,
        id="12-a",
        job_id=12,
        array_job_id=11,
        array_task="1",
        chain_submitted_at=opened,
        revision="0001-a",
        user="ann",
        cluster="",
        nodes=NODES,
        opened_at=opened,
        kill_switch_path="",
        kill_switch_inode=None,
        iteration_at_start=None,
    )
    return msgspec.structs.replace(attempt, reason=reason, lost_nodes=lost, verdict=verdict)


def without_lost_nodes(task: Task, ended: Attempt, restarts: int = 0) -> Task | None:
    job = JobNow(task.allocation.nodes, task.nodes, task.spare, restarts)
    nodes = after_failure(ended, [ended], datetime.min.replace(tzinfo=UTC), job).nodes
    return None if nodes is None else restarted_on(task, nodes)


def test_a_lost_node_is_replaced_until_no_spare_one_is_left(task: Task) -> None:
    assert task.nodes == ("x1", "x2")
    first = without_lost_nodes(task, ended(lost=("x2",)))
    assert first is not None
    assert (first.nodes, first.spare, first.allocation.nodes) == (("x1", "x3"), 1, ("x1", "x3", "x4"))
    assert re.fullmatch(r"\*\*\*ALERT: tiny: x2 .*\b1\*\*\*", restart_line(task, first))
    second = without_lost_nodes(first, ended(lost=("x3",)))
    assert second is not None
    assert (second.nodes, second.spare) == (("x1", "x4"), 0)
    assert without_lost_nodes(second, ended(lost=("x4",))) is None


def test_without_a_spare_node_the_layout_of_fewer_nodes_is_trained_and_the_rest_is_spare(tmp_path: Path) -> None:
    revisions.publish(ready(load_run_file(write_run(tmp_path, nodes=4, slurm="min_nodes = 1"))))  # batches of 8
    allocation = Allocation(12, 11, "1", 0, NODES, "ann")
    task = replace(task_in(tmp_path), allocation=allocation)
    task = replace(task, options=understood(task.revision, (), 4))
    fewer = fewer_nodes(task, 3)
    assert fewer is not None and fewer.nodes == 2
    first = restarted_on(task, ("x1", "x2", "x4"), fewer)
    assert (first.nodes, first.spare, first.fewer_nodes) == (("x1", "x2"), 1, 2)
    assert re.fullmatch(r"\*\*\*ALERT: tiny: x3 .* on 2 nodes.*\b1\*\*\*", restart_line(task, first))
    assert isinstance(first.options, Options) and first.options.global_batch_size == 8
    attempt = new_attempt(first, 2, "12-b")
    assert attempt.fewer_nodes == 2 and attempt.job_and_restart == "11_1 (restart 1, on 2 nodes)"
    second = fewer_nodes(first, 1)
    assert second is not None and restarted_on(first, ("x4",), second).nodes == ("x4",)
    assert fewer_nodes(first, 0) is None


def test_on_the_same_nodes_the_job_keeps_all_and_counts_its_restarts(task: Task) -> None:
    rest = without_lost_nodes(task, ended(Ending.SIGNAL), restarts=1)
    assert rest is not None and (rest.nodes, rest.spare, rest.restart) == (("x1", "x2"), 2, 1)
    assert "ALERT" not in restart_line(task, rest)


def test_what_was_picked_before_says_nothing_of_the_next_attempt(task: Task) -> None:
    rest = without_lost_nodes(replace(task, picked=("x1", "x4")), ended(lost=("x4",)))
    assert rest is not None and rest.nodes == ("x1", "x2")


@pytest.mark.parametrize(
    ("verdict", "goes_on"),
    [
        (Verdict(cause=Cause.GPU_ECC, node="x2", confidence=0.9), True),
        (Verdict(cause=Cause.GPU_ECC, node="x2", confidence=0.3), False),
        (Verdict(cause=Cause.GPU_ERROR, node="x2", confidence=0.9, user_fault=True), False),
        (Verdict(cause=Cause.USER_CODE, node="x2", confidence=0.9), False),
        (Verdict(cause=Cause.GPU_LOST, node="", confidence=0.9), False),
        (None, False),
    ],
)
def test_a_node_that_triage_is_sure_of_is_replaced_and_no_users_error_replaces_one(
    task: Task, verdict: Verdict | None, goes_on: bool
) -> None:
    assert (without_lost_nodes(task, ended(Ending.FAILED, verdict=verdict)) is not None) == goes_on


def found(**standing: Standing) -> ProbeReport:
    nodes = []
    for node in NODES:
        reasons = (Reason(standing[node], "memory.copy_gbs", "memory: 5 GB/s"),) if node in standing else ()
        of = standing.get(node, Standing.FINE)
        nodes.append(NodeReport(node=node, standing=of, hardware="", reasons=reasons, numbers={"machine.cores": 8.0}))
    return ProbeReport(at=datetime.now(UTC), effort="quick", took_s=9.0, nodes=tuple(nodes))


def after_probe(task: Task, report: ProbeReport, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The task after a probe that found that. Only the probe itself is not real."""
    monkeypatch.setattr(good_nodes, "_setting", lambda _task: None)
    monkeypatch.setattr(good_nodes, "probe", lambda *_: report)
    slurm = msgspec.structs.replace(task.revision.file.slurm, spare=2)
    object.__setattr__(task.revision, "file", msgspec.structs.replace(task.revision.file, slurm=slurm))
    folder = task.paths.attempt_folder(12)
    folder.mkdir(parents=True, exist_ok=True)
    return good_nodes.on_good_nodes(task, ended(), None, folder, lambda: False)


def test_a_bad_node_is_out_of_the_job_for_good_and_takes_no_lost_ones_place(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = after_probe(task, found(x2=Standing.BAD), monkeypatch)
    assert (rest.nodes, rest.allocation.nodes, rest.spare) == (("x1", "x3"), ("x1", "x3", "x4"), 1)
    after = without_lost_nodes(rest, ended(lost=("x3",)))
    assert after is not None and (after.nodes, after.spare) == (("x1", "x4"), 0)
    assert re.search(r"\b0\*\*\*$", restart_line(rest, after))


def test_with_no_more_nodes_than_it_needs_a_training_goes_on_with_slow_ones_and_says_so_but_with_no_bad_one(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = after_probe(task, found(x2=Standing.BAD, x3=Standing.SLOW, x4=Standing.BAD), monkeypatch)
    assert (rest.nodes, rest.spare) == (("x1", "x3"), 0)
    task.log.finish()
    assert re.search("x3 .*slow.* 5 GB/s", task.paths.main_log.read_text())
    with pytest.raises(OpsctlError, match=r'^1 .* 2 .*x2, x3, x4.*\[slurm\] spare.*probe = "off"'):
        after_probe(task, found(x2=Standing.BAD, x3=Standing.BAD, x4=Standing.BAD), monkeypatch)


def test_more_lost_than_spare_or_none_at_all_is_the_end_of_the_job(task: Task) -> None:
    assert without_lost_nodes(task, ended(lost=("x1", "x2"))) is not None
    assert without_lost_nodes(replace(task, spare=1), ended(lost=("x1", "x2"))) is None
    assert without_lost_nodes(replace(task, spare=0), ended(lost=("x2",))) is None
    assert without_lost_nodes(task, ended(Ending.FAILED)) is None
    assert without_lost_nodes(task, ended(lost=("x4",))) is None  # nothing ran there


def test_a_lost_nodes_place_is_taken_by_the_best_spare_one_and_the_others_stay(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = after_probe(task, found(x1=Standing.SLOW), monkeypatch)
    assert probed.nodes == ("x2", "x3")
    after = without_lost_nodes(probed, ended(lost=("x3",)))
    assert after is not None and after.nodes == ("x2", "x4")
    last = without_lost_nodes(after, ended(lost=("x4",)))
    assert last is not None and last.nodes == ("x1", "x2")


ECC = Verdict(cause=Cause.GPU_ECC, node="x2", confidence=0.9)
NETWORK = Verdict(cause=Cause.NETWORK, node="x2", confidence=0.9)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("age", "before", "expected"),
    [
        (None, ended(lost=("x2",)), True),
        (timedelta(minutes=5), None, True),
        (timedelta(hours=23), ended(lost=("x2",)), False),
        (timedelta(hours=23), ended(Ending.FAILED, verdict=ECC), False),
        (TESTED_FOR, ended(lost=("x2",)), True),
        (timedelta(minutes=5), ended(Ending.FAILED, verdict=NETWORK), True),
        (timedelta(minutes=5), ended(lost=("x3",), verdict=NETWORK), True),
        (timedelta(minutes=5), ended(Ending.FAILED), True),
    ],
)
def test_nodes_are_tested_again_in_a_job_unless_it_is_sure_whose_hardware_it_lost_and_the_test_is_of_that_day(
    age: timedelta | None, before: Attempt | None, expected: bool
) -> None:
    assert is_to_be_tested(None if age is None else NOW - age, before, NOW) == expected


def test_what_is_not_tested_again_is_trained_on_as_before_and_the_attempts_folder_says_who(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = after_probe(task, found(x1=Standing.SLOW, x4=Standing.BAD), monkeypatch)
    assert tested.nodes == ("x2", "x3")
    lost = ended(lost=("x3",))
    rest = without_lost_nodes(tested, lost)
    assert rest is not None
    monkeypatch.setattr(good_nodes, "probe", lambda *_: pytest.fail("tested again"))
    folder = task.paths.attempt_folder(12)
    (folder / "probe.json").unlink()
    after = good_nodes.on_good_nodes(rest, ended(), lost, folder, lambda: False)
    assert after.nodes == ("x1", "x2")
    kept = msgspec.json.decode((folder / "probe.json").read_bytes(), type=ProbeReport)
    assert (kept.trained_on, kept.spare) == (("x1", "x2"), ())
    task.log.finish()
    assert iso(kept.at, "minutes") in task.paths.main_log.read_text()
