"""Which of the job's nodes are trained on: tested before, and replaced by spare ones where they are bad or lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from opsctl.attempts.ending import Ending
from opsctl.attempts.events import Attempt
from opsctl.attempts.verdict import Cause, Verdict
from opsctl.errors import OpsctlError
from opsctl.job.probe_setting import setting_for
from opsctl.job.task import Task
from opsctl.logs.pulse import alert_line
from opsctl.probe.choosing import chosen
from opsctl.probe.evidence import put_on_record
from opsctl.probe.report import Standing
from opsctl.probe.running import Setting, probe
from opsctl.probe.words import summary
from opsctl.records.state_files import write_state
from trainer.formats.probe import EFFORTS

PROBE_FILE = "probe.json"
#: Ends for which another node is tried at once in the same job, where triage is this sure of the node.
_OF_A_NODE = frozenset(
    {Cause.GPU_ERROR, Cause.GPU_ECC, Cause.GPU_LOST, Cause.NODE_FAILURE, Cause.NETWORK, Cause.NCCL, Cause.SHM}
)
_SURE = 0.6


def on_good_nodes(task: Task, attempt: Attempt, folder: Path, is_to_leave: Callable[[], bool]) -> Task:
    """The task on the nodes that it is to be trained on. folder: the attempt's.

    A probe that could not be made is told and keeps nobody from training. Raises OpsctlError where too few are good.
    """
    effort = task.revision.file.slurm.effort if not task.revision.damage else "off"
    if effort == "off" or is_to_leave():
        return task
    try:
        found = probe(_setting(task), EFFORTS[effort], is_to_leave)
    except OpsctlError as error:
        task.log.say(f"opsctl: the nodes are not tested: {error}")
        return task
    task.log.say(f"opsctl: {summary(found)}")
    for line in found.not_seen:
        task.log.say(f"opsctl: {line}")
    try:
        put_on_record(task.paths, found, attempt.id)
    except OSError as error:
        task.log.say(f"opsctl: what speaks against nodes cannot be put on record: {error.strerror}")
    wanted = len(task.nodes)
    picked = chosen(task.allocation.nodes, wanted, found.nodes)
    used = picked if len(picked) == wanted else []
    spare = [node for node in task.allocation.nodes if node not in used]
    try:
        report = msgspec.structs.replace(found, trained_on=tuple(used), spare=tuple(spare))
        write_state(task.paths.output, folder / PROBE_FILE, report)
    except OSError as error:
        task.log.say(f"opsctl: {folder / PROBE_FILE} cannot be written: {error.strerror}")
    if not used:
        bad = ", ".join(one.node for one in found.of(Standing.BAD))
        raise OpsctlError(
            f"{len(picked)} nodes are good and {wanted} are needed; bad: {bad}; give [slurm] spare for such cases, or "
            'probe = "off" to train on them all the same'
        )
    if spare:
        task.log.say(f"opsctl: trains on {' '.join(used)}; spare: {' '.join(spare)}")
    return replace(task, picked=tuple(used))


def _setting(task: Task) -> Setting:
    job, revision = task.allocation, task.revision
    return setting_for(
        revision.file, revision.run_file, task.paths.output, task.cluster, task.client, job.nodes, job.job_id
    )


def without_lost_nodes(task: Task, ended: Attempt | None) -> Task | None:
    """The task on the job's other nodes, where the attempt died of some and spare ones are left; else None. Pure."""
    if ended is None or not task.spare:
        return None
    lost = _blamed(ended, task.nodes)
    left = tuple(node for node in task.allocation.nodes if node not in lost)
    spare = task.spare - (len(task.allocation.nodes) - len(left))
    if not lost or spare < 0:
        return None
    return replace(task, allocation=replace(task.allocation, nodes=left), spare=spare, picked=left[: len(task.nodes)])


def _blamed(ended: Attempt, nodes: Collection[str]) -> set[str]:
    lost = set(ended.lost_nodes) if ended.reason == Ending.NODE_FAILURE else set()
    if ended.verdict is not None and _is_of_a_node(ended.verdict):
        lost.add(ended.verdict.node)
    return lost & set(nodes)


def _is_of_a_node(verdict: Verdict) -> bool:
    return verdict.cause in _OF_A_NODE and not verdict.user_fault and verdict.confidence >= _SURE


def replacement_line(before: Task, after: Task) -> str:
    """What the training log says of the change."""
    gone = _names(set(before.allocation.nodes) - set(after.allocation.nodes))
    return alert_line(f"{before.name}: {gone} failed; this job goes on without, spare nodes left: {after.spare}")


def _names(nodes: Iterable[str]) -> str:
    return ", ".join(sorted(nodes))
