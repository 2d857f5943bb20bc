"""Choose the job's nodes for the training: test them first, and replace bad or lost ones by spares."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.files.state_files import write_state
from opsctl.core.timestamps import iso, now
from opsctl.diagnosis.nodes.exclusion import keep_and_apply, wanted_by
from opsctl.diagnosis.probe.report import ProbeReport, Standing, best_first, chosen, summary
from opsctl.diagnosis.probe.run_probe import Setting, probe, record_evidence
from opsctl.diagnosis.probe.verdict import Expected
from opsctl.jobs.runner.launch import free_port, launchers_python, master_address
from opsctl.jobs.runner.task import Task, understood
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import failed_nodes
from opsctl.run.config.schema import RunFile
from opsctl.run.logs.pulse import alert_line
from opsctl.run.planning.fewer_nodes import SmallerLayout, smaller_layouts
from opsctl.run.render.shell import ShellRequest, shell_script
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from trainer.formats.attempt.node_samples import EFFORTS

PROBE_FILE = "probe.json"
#: For so long a job's nodes count as tested.
TESTED_FOR = timedelta(days=1)


def on_good_nodes(
    task: Task, attempt: Attempt, before: Attempt | None, folder: Path, is_to_leave: Callable[[], bool]
) -> Task:
    """Return the task on the nodes to train on, without the bad ones.

    before: this job's previous attempt. folder: the attempt's folder. A probe that could not run is reported and
    prevents no training; slow nodes do not either. Raises OpsctlError if too few nodes are left without the bad ones.
    """
    effort = task.revision.file.slurm.effort if not task.revision.damage else "off"
    if effort == "off" or is_to_leave():
        return task
    known = task.probed
    if known is not None and known.effort == effort and not is_to_be_tested(known.at, before, now()):
        task.log.add_line(
            f"opsctl: the nodes are not tested again: they were at {iso(known.at, 'minutes')}, in this job"
        )
        _write(task, known, task.nodes, folder)
        return task
    try:
        found = probe(_setting(task), EFFORTS[effort], is_to_leave)
    except OpsctlError as error:
        task.log.add_line(f"opsctl: the nodes are not tested: {error}")
        return task
    task.log.add_line(f"opsctl: {summary(found)}")
    for line in found.not_seen:
        task.log.add_line(f"opsctl: {line}")
    try:
        record_evidence(task.paths, found, attempt.id)
    except OSError as error:
        task.log.add_line(f"opsctl: cannot record the evidence against nodes: {error.strerror}")
    wanted = len(task.nodes)
    bad = [one.node for one in found.of(Standing.BAD)]
    picked = chosen(task.allocation.nodes, wanted, found.nodes)
    used = picked if len(picked) == wanted else []
    spare = _write(task, found, used, folder)
    if not used:
        raise OpsctlError(
            f"{len(picked)} nodes are left and {wanted} are needed; bad: {', '.join(bad)}; give [slurm] spare for such "
            'cases, or probe = "off" to train on them all the same'
        )
    if spare:
        task.log.add_line(f"opsctl: trains on {' '.join(used)}; spare: {' '.join(spare)}")
    for one in found.of(Standing.SLOW):
        if one.node in used:
            task.log.add_line(
                f"opsctl: {one.node} is slow, but no other node is free, so it is used: {one.reasons[0].words}"
            )
    fit = tuple(node for node in task.allocation.nodes if node not in bad)
    return replace(
        task,
        allocation=replace(task.allocation, nodes=fit),
        spare=len(fit) - wanted,
        picked=tuple(used),
        probed=found,
    )


def is_to_be_tested(tested_at: datetime | None, before: Attempt | None, at: datetime) -> bool:
    """Return whether a job's nodes are tested at `at`. Pure.

    tested_at: when its nodes were last. before: the attempt that it made before. Not again where hardware is known to
    have ended that one, which is gone, and the others were found fit less than TESTED_FOR ago: every restart would cost
    the minute of all nodes. What a network or a collective died of may be another node than the one that said so.
    """
    if tested_at is None or before is None or at - tested_at >= TESTED_FOR:
        return True
    return not failed_nodes(before) or failed_nodes(before) != failed_nodes(before, of_hardware=True)


def _write(task: Task, found: ProbeReport, used: Sequence[str], folder: Path) -> list[str]:
    """Write the report into the attempt's folder; return the spare nodes."""
    spare = [node for node in task.allocation.nodes if node not in used]
    try:
        report = msgspec.structs.replace(found, trained_on=tuple(used), spare=tuple(spare))
        write_state(task.paths.output, folder / PROBE_FILE, report)
    except OSError as error:
        task.log.add_line(f"opsctl: {folder / PROBE_FILE} cannot be written: {error.strerror}")
    return spare


def _setting(task: Task) -> Setting:
    job, revision = task.allocation, task.revision
    return setting_for(
        revision.file, revision.run_file, task.paths.output, task.cluster, task.client, job.nodes, job.job_id
    )


def fewer_nodes(task: Task, left: int) -> SmallerLayout | None:
    """Return the layout on `left` nodes or fewer with which the training can continue; None without one."""
    if task.revision.damage or isinstance(task.options, OpsctlError):
        return None
    arguments = (*task.revision.trainer_arguments, *task.one_off)
    return next(smaller_layouts(task.revision.file, arguments, task.options, left + 1), None)


def restarted_on(task: Task, left: tuple[str, ...], fewer: SmallerLayout | None = None) -> Task:
    """Return the task for the job's next attempt, with the nodes that are `left` of its allocation.

    Failed nodes are replaced by the spares that were best in the last probe. fewer: the layout if too few are left.
    """
    wanted = len(task.nodes) if fewer is None else fewer.nodes
    by_standing = best_first(left, task.probed.nodes if task.probed is not None else ())
    goes_on = set(sorted(by_standing, key=lambda node: node not in task.nodes)[:wanted])
    picked = tuple(node for node in left if node in goes_on)
    allocation = replace(task.allocation, nodes=left)
    spare = len(left) - wanted
    again = replace(task, allocation=allocation, spare=spare, picked=picked, restart=task.restart + 1)
    if fewer is None:
        return again
    one_off = (*task.one_off, *fewer.arguments)
    options = understood(task.revision, one_off, fewer.nodes)
    return replace(again, one_off=one_off, options=options, fewer_nodes=fewer.nodes)


def restart_line(before: Task, after: Task) -> str:
    """Return the line of the training log about the restart, an alert if it changes the nodes."""
    gone = ", ".join(sorted({*before.allocation.nodes} - {*after.allocation.nodes}))
    if not gone:
        return f"opsctl: the training starts again in this job, on the same nodes: restart {after.restart}"
    on = "" if len(after.nodes) == len(before.nodes) else f" on {len(after.nodes)} nodes"
    return alert_line(
        f"{before.name}: {gone} failed; this job continues without it{on}, spare nodes left: {after.spare}"
    )


def keep_off_bad_nodes(task: Task) -> None:
    """Before this job gives its nodes back: the chain's next task is not to be given the one that failed again."""
    try:
        slurm = task.revision.file.slurm
    except OpsctlError:
        return  # no revision says what partition it is
    try:
        wanted = wanted_by(task.paths, slurm, task.allocation.array_job_id)
    except OSError as error:
        task.log.add_line(f"opsctl: cannot exclude bad nodes from queued jobs: {error}")
        return
    for line in keep_and_apply(task.paths, client_for(task.cluster), wanted):
        task.log.add_line(f"opsctl: {line}")


def setting_for(
    file: RunFile,
    run_file: Path,
    folder: Path,
    cluster: Cluster,
    client: SlurmClient,
    nodes: Sequence[str],
    job_id: int,
) -> Setting:
    """file: the run's, expanded. folder: that all nodes write to. nodes: the job's, in Slurm's order."""
    try:
        seen = client_for(cluster).nodes(",".join(nodes))  # not the job's own client, which may wait for minutes
        memory_mib = {node.name: node.memory_mib for node in seen}
    except SlurmError:
        memory_mib = {}  # then nodes are compared with each other alone
    request = ShellRequest(
        run_file=str(run_file),
        folder=str(folder),
        environment=file.run.environment,
        env=file.env,
        shared=file.run.group is not None,
        cluster=cluster,
    )
    return Setting(
        nodes=nodes,
        job_id=job_id,
        python=launchers_python(file.run.environment),
        script=shell_script(request),
        folder=folder,
        environment={**os.environ, **cluster.additions(dict(os.environ))},
        meeting=lambda first: (master_address(first, client.node_address), free_port(job_id)),
        expected=Expected(file.slurm.gpus_per_node, memory_mib),
    )
