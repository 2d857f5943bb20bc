"""Running the step of a task: what is particular to the job among the trainer's arguments, and what its end says."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.files.state_files import write_state
from opsctl.core.tcp_ports import is_free
from opsctl.core.timestamps import iso, now
from opsctl.jobs.runner.checkpoint_watch import CheckpointWatch, ProgramStart
from opsctl.jobs.runner.cron_watch import CronWatch
from opsctl.jobs.runner.hang_watch import watch_over
from opsctl.jobs.runner.launch import Launch, free_port, launchers_python, master_address, trainer_words
from opsctl.jobs.runner.limit import (
    Limit,
    ask_limit,
    exit_duration_arguments,
    exit_minutes,
    is_limits_warning,
    why_signalled,
)
from opsctl.jobs.runner.own_lease import LeaseHeartbeat
from opsctl.jobs.runner.program_node import STEP_VARIABLE, ProgramStep
from opsctl.jobs.runner.requests import RequestHandler
from opsctl.jobs.runner.step import LEAVE_S, Step
from opsctl.jobs.runner.task import FollowedPaths, Task
from opsctl.jobs.signals import Signals
from opsctl.run.attempts.outcome import StepEnd
from opsctl.run.config.program import Program
from opsctl.run.programs.progress import Translator
from opsctl.run.state.attempt_folder import exit_report
from opsctl.slurm.backends import client_for
from opsctl.slurm.durations import parse_duration_s
from opsctl.slurm.states import State, end_of
from trainer.formats.attempt.attempt_records import EXIT_REPORT, SAVE_REQUEST, ExitReport
from trainer.formats.attempt.lease import Holder
from trainer.formats.json_text import json_line
from trainer.formats.logs.guard_lines import LEAVES_EARLY, Reason
from trainer.recipe.options import Options, to_arguments

#: How near to the end of the job a SIGTERM counts as the time limit's.
_AT_LIMIT_S = 90


def run_step(
    task: Task,
    signals: Signals,
    folder: Path,
    heartbeat: LeaseHeartbeat,
    handler: RequestHandler,
    start: ProgramStart | None,
) -> tuple[StepEnd, str]:
    """Run the step; return how it ended, and a clause about the signals that the job got, empty without any.

    start: of another program.
    """
    if isinstance(task.options, OpsctlError):
        raise task.options
    if problem := task.checkpoint_problem():
        raise OpsctlError(problem)
    limit = _limit(task)
    margin_s = parse_duration_s(task.revision.file.slurm.exit_margin)
    program = start.program if start else None
    watch: CheckpointWatch | None = None
    progress: Translator | None = None
    if start is None:
        launch = _launch(task, task.options, folder, limit, heartbeat.lease.holder)
    else:
        if start.problem is not None:
            raise start.problem
        progress = start.progress()
        task.log.add_line(start.log_line())
        launch = _launch_program(task, start.program, folder, start.checkpoint)
        watch = CheckpointWatch(task.paths, start.program)
    stop_request = task.paths.stop_request(task.allocation.job_id)
    environment = {**os.environ, **task.cluster.additions(dict(os.environ)), **launch.environment()}

    def has_left() -> bool:
        _follow(task, step)
        folder = task.paths.attempt_folder(task.allocation.job_id)
        return exit_report(task.paths.output, folder).reason in LEAVES_EARLY

    cron, hangs = CronWatch(task.paths, task.cluster), watch_over(task, program)
    standby = task.standby if program is None and task.revision.file.slurm.restarts else None
    step = Step(
        launch.command(),
        environment,
        task.log,
        signals,
        task.paths.output,
        stop_request,
        has_left,
        heartbeat=heartbeat,
        why_signalled=lambda: why_signalled(signals, _limit(task, limit), margin_s),
        handler=handler,
        cron=cron,
        hangs=hangs,
        checkpoints=watch,
        progress=progress,
        standby=standby,
        started=standby.take(launch, task.nodes) if standby is not None else None,
        leave_s=LEAVE_S if program is None else LEAVE_S + program.grace_s,
    )
    if standby is not None:
        standby.prepare(launch, task.allocation.nodes, environment, lambda: hangs.is_training)
    handler.begin_step()
    with cron, watch or contextlib.nullcontext():
        code = step.run()
    if watch is not None:
        for line in watch.adopt_now():
            task.log.add_line(line)
        _record_finish(task)
    _follow(task, step)
    limit = _limit(task, limit) if signals.any else limit
    why = why_signalled(signals, limit, margin_s) if signals.any else ""
    is_told, ends_at = signals.ended_at is not None, limit.ends_at
    limit_reached = is_told and ends_at is not None and (ends_at - now()).total_seconds() < _AT_LIMIT_S
    said = exit_report(task.paths.output, task.paths.attempt_folder(task.allocation.job_id)).reason
    state, preempted_at = _slurm_state(task) if code or said == Reason.STOP_REQUEST else ("", None)
    lost_nodes = tuple(step.lost_nodes)
    end = StepEnd(
        exit_code=code,
        was_asked_to_end=is_told,
        limit_reached=limit_reached,
        slurm_state=state,
        lost_nodes=lost_nodes,
        first_exit=step.first_exit,
        overtaken=heartbeat.lost,
        limit_warned=is_limits_warning(signals, limit, margin_s),
        asked_for=handler.to_end.ending if handler.to_end else None,
        ended_on_request=step.ended_on_request,
        ended_hung=step.ended_hung,
        stacks=hangs.stacks,
        verdict=hangs.verdict,
        iteration=progress.iteration if progress else None,
    )
    notes = (
        f"it hung: {hangs.sentence}" if step.ended_hung else "",
        f"Slurm preempted the job at {iso(preempted_at)}" if preempted_at is not None else "",
        why,
        handler.to_end.words() if handler.to_end else "",
    )
    return end, "; ".join(filter(None, notes))


def _record_finish(task: Task) -> None:
    """Record that another program has finished, if its newest checkpoint says so. Its exit code proves nothing."""
    folder = task.paths.attempt_folder(task.allocation.job_id)
    if task.is_finished() and not exit_report(task.paths.output, folder).reason:
        with contextlib.suppress(OSError):
            write_state(task.paths.output, folder / EXIT_REPORT, ExitReport(reason=Reason.FINISHED))


def _follow(task: Task, step: Step) -> None:
    """Use the current path of the output folder."""
    if isinstance(task.paths, FollowedPaths):
        task.paths.look()
        step.root, step.stop_request = task.paths.output, task.paths.stop_request(task.allocation.job_id)
        task.log.root, task.log.path = task.paths.output, task.paths.main_log


def _launch(task: Task, options: Options, folder: Path, limit: Limit, own: Holder) -> Launch:
    slurm, nodes = task.revision.file.slurm, task.nodes
    minutes = exit_minutes(limit.ends_at, now(), parse_duration_s(slurm.exit_margin))
    stop_request = task.paths.stop_request(task.allocation.job_id)
    of_this_job = {
        "stop_request_path": str(stop_request),
        "save_request_path": str(folder / SAVE_REQUEST),
        "exit_report_path": str(folder / EXIT_REPORT),
        "lease_path": str(task.paths.lease),
        "lease_number": own.number,
        "exit_margin_in_mins": f"{parse_duration_s(slurm.exit_margin) / 60:.3f}",
    }
    address, port = master_address(nodes[0], task.client.node_address), free_port(task.allocation.job_id)
    arguments = [
        *task.revision.trainer_arguments,
        *task.one_off,
        *to_arguments(of_this_job),
        *exit_duration_arguments(options, minutes),
    ]
    return _launch_of(
        task,
        folder,
        launchers_python(task.revision.file.run.environment),
        trainer_words(len(nodes), slurm.gpus_per_node, address, port, folder, arguments),
    )


def _launch_program(task: Task, program: Program, folder: Path, checkpoint: Path | None) -> Launch:
    """Return the launch of another program. Its nodes' processes run in opsctl's Python, not the program's."""
    nodes, job = task.nodes, task.allocation.job_id
    port = free_port(job)
    step = ProgramStep(
        command=(*program.command, *task.one_off, *program.resume_arguments(checkpoint)),
        folder=str(program.folder),
        launch=program.launch,
        nodes=len(nodes),
        ranks_per_node=task.revision.file.slurm.gpus_per_node,
        master_address=master_address(nodes[0], task.client.node_address),
        master_port=port,
        stop_port=free_port(job, is_free=lambda other: other != port and is_free(other)),
        token=secrets.token_hex(16),
        stop=program.stop,
        saves=program.saves_on_request,
        grace_s=program.grace_s,
        kill_switch=str(task.kill_switch),
        stop_request=str(task.paths.stop_request(job)),
        output=str(task.paths.output),
        attempt_folder=str(folder),
        checkpoint=str(checkpoint or ""),
    )
    words = ["-m", "opsctl.jobs.runner.program_node"]
    return _launch_of(
        task, folder, (sys.executable, "-P"), words, {**program.kind.environment, STEP_VARIABLE: json_line(step)}
    )


def _launch_of(
    task: Task, folder: Path, python: Sequence[str], words: Sequence[str], variables: Mapping[str, str] | None = None
) -> Launch:
    nodes = task.nodes
    return Launch(
        step_script=task.revision.step_script,
        python=python,
        nodes=len(nodes),
        only_on=nodes if task.picked or task.spare else (),
        cpus_per_task=task.allocation.cpus_per_task,
        attempt_folder=folder,
        words=words,
        variables=variables or {},
        revision=task.revision.number,
    )


def _limit(task: Task, before: Limit | None = None) -> Limit:
    """Return the limit that Slurm reports, which a person may have changed since `before`.

    Where Slurm does not answer, return `before`, or the revision's limit, counted from now.
    """
    try:
        known = ask_limit(task.client, task.allocation.job_id)
    except SlurmError as error:
        known = before
        if before is None:
            task.log.add_line(f"opsctl: the time limit is taken from the run file: {error}")
    length_s = parse_duration_s(task.revision.file.slurm.time)
    return known or before or Limit(now() + timedelta(seconds=length_s), length_s)


def time_to_train_s(task: Task) -> float | None:
    """Return how long the job may still train before it leaves for the limit; None without a known one."""
    with contextlib.suppress(SlurmError):  # the next attempt asks again
        found = ask_limit(client_for(task.cluster), task.allocation.job_id)
        if found is not None and found.ends_at is not None:
            return (found.ends_at - now()).total_seconds() - parse_duration_s(task.revision.file.slurm.exit_margin)
    return None


def _slurm_state(task: Task) -> tuple[str, datetime | None]:
    """Return Slurm's decision about this job, if any (a lost node, a cancellation), and when it preempted the job.

    In the grace time of a preemption its state is still RUNNING.
    """
    job_id, client = task.allocation.job_id, client_for(task.cluster)
    end, preempted_at = None, None
    with contextlib.suppress(SlurmError):
        end = client.ends([job_id]).get(job_id)
        preempted_at = client.preempted([job_id]).get(job_id)
    if preempted_at is not None and (end is None or end_of(end.state) is None):
        return State.PREEMPTED, preempted_at
    return (end.state if end else ""), preempted_at
