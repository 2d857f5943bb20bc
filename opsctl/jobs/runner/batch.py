"""`opsctl job run`: from the look at the kill switch to the attempt's closing, on the first node."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.files.state_files import make_folder
from opsctl.core.files.trusted import present_name
from opsctl.core.output import message
from opsctl.core.timestamps import now
from opsctl.diagnosis.triage.on_close import judge_lost
from opsctl.jobs.runner.chain_stop import (
    cancel_pending,
    counting_since,
    has_next_task,
    has_to_stop,
    hold_next_task,
    stop_chain,
)
from opsctl.jobs.runner.checkpoint_watch import prepared_start
from opsctl.jobs.runner.good_nodes import fewer_nodes, keep_off_bad_nodes, on_good_nodes, restart_line, restarted_on
from opsctl.jobs.runner.host_memory import free_snapshots
from opsctl.jobs.runner.own_attempt import (
    close,
    end_line,
    lost_line,
    new_attempt,
    new_attempt_id,
    record_end,
    record_short,
    start_line,
)
from opsctl.jobs.runner.own_lease import END_WAIT_S, LeaseHeartbeat, WaitPolicy, wait_for_turn
from opsctl.jobs.runner.requests import RequestHandler, ToEnd
from opsctl.jobs.runner.run_step import run_step, time_to_train_s
from opsctl.jobs.runner.standby import AFTER_S, Standby
from opsctl.jobs.runner.task import FollowedPaths, Task, request_stop, this_task
from opsctl.jobs.signals import Signals, noted_signals
from opsctl.run.attempts import events as attempts_file
from opsctl.run.attempts.close_lost import checkpoint_of, close_lost_attempts, went_back
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import FAILURE_LIMIT, keeps_losing_the_lease
from opsctl.run.attempts.outcome import StepEnd, closed, read_evidence
from opsctl.run.attempts.restart import JobNow, after_failure
from opsctl.run.checkpoints.inventory import last_checkpoint
from opsctl.run.checkpoints.rollbacks import read_rollbacks
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.pulse import alert_line
from opsctl.run.state import kill_switch, lease
from opsctl.run.state.attempt_folder import set_aside
from opsctl.run.state.lease import Held, OwnLease
from opsctl.slurm.backends import client_for
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from trainer.formats.checkpoint.history import Rollback
from trainer.formats.logs.guard_lines import Reason, leave_line, nothing_left_line

#: How long a task waits for Slurm to be done with the one before it, which the failure limit has to count.
_COMPLETING_S = 15.0


def run_job(
    paths: RunPaths,
    cluster: Cluster,
    submitted_at: datetime,
    one_off: Sequence[str],
    only_owners: bool = False,
    patience: WaitPolicy | None = None,
    spare: int = 0,
    standby_after_s: float = AFTER_S,
) -> int:
    """Train until the end, the limit, a signal or the kill switch. Returns the exit code of the step.

    only_owners: with no revision of another member of the group. spare: so many of the job's nodes are not needed to
    train; while there are some left, it goes on without those that it loses. Raises OpsctlError outside of a job.
    """
    with contextlib.suppress(OSError):  # where there is no such folder, what is looked for in it says so
        paths = FollowedPaths(paths.output)
    task = this_task(paths, cluster, submitted_at, one_off, only_owners, spare)
    with noted_signals() as signals:
        try:
            code = _leave_at_once(task)
            if code is not None:
                return code
            standby = Standby(task.paths.output, task.paths.attempt_folder(task.allocation.job_id), standby_after_s)
            return _train_on(replace(task, standby=standby), signals, patience or WaitPolicy(), standby)
        finally:
            task.log.finish()


def _train_on(task: Task, signals: Signals, patience: WaitPolicy, standby: Standby) -> int:
    """Train, and meanwhile carry out requests. A requeue comes after the lease was released."""
    handler = RequestHandler(task)
    handler.start()
    try:
        code, ended = _train(task, signals, patience, handler), None
        while code and handler.attempt is not None and handler.attempt is not ended:
            ended = handler.attempt
            again = _restarted(handler.task, ended, signals, handler)
            if again is None:
                break
            handler.task = task = again
            code = _train(task, signals, patience, handler)
        if code:
            free_snapshots(handler.task, handler.attempt.lost_nodes if handler.attempt is not None else ())
        return code
    finally:
        standby.end()
        handler.finish(handler.attempt, signals)
        for line in handler.news():
            task.log.add_line(line)


def _restarted(task: Task, ended: Attempt, signals: Signals, handler: RequestHandler) -> Task | None:
    """Return the task for the next attempt in this job; None if the job ends. Reports which and why."""
    if handler.unstarted:
        return None
    fewer_on = functools.cache(lambda left: fewer_nodes(task, left))
    job = JobNow(
        allocated=task.allocation.nodes,
        used=task.nodes,
        spare=task.spare,
        restarts=task.revision.file.slurm.restarts,
        time_left_s=time_to_train_s(task),
        must_leave="the job was asked to exit" if _is_to_leave(task, signals, handler) else "",
        fewer=lambda left: found.nodes if (found := fewer_on(left)) else 0,
        has_next=lambda: has_next_task(task),
    )
    attempts = [one for one in attempts_file.read(task.paths) if one.id != ended.id]
    decision = after_failure(ended, [*attempts, ended], counting_since(task), job)
    if decision.nodes is None:
        if decision.why:
            task.log.add_line(f"opsctl: the training does not start again in this job: {decision.why}")
        return None
    if ended.lost_nodes:
        hold_next_task(task)
    if ended.lost_nodes and task.standby is not None:
        task.standby.end()  # Slurm ends their step too, maybe only after the restart has begun on them
    fewer = fewer_on(len(decision.nodes)) if decision.train_on is not None else None
    again = restarted_on(task, decision.nodes, fewer)
    task.log.add_line(restart_line(task, again))
    return again


def _leave_at_once(task: Task) -> int | None:
    """Return the exit code of a task that has nothing to do; None for one that has."""
    switch = task.kill_switch
    if kill_switch.is_triggered(switch):
        return _leave(task, Reason.KILL_SWITCH, leave_line(Reason.KILL_SWITCH, switch))
    if task.is_finished():
        return _leave(task, Reason.FINISHED, nothing_left_line())
    return None


def _leave(task: Task, reason: Reason, line: str) -> int:
    task.log.add_line(line)
    # A task that ends within seconds does not wait long for Slurm.
    _close_lost(task, client_for(task.cluster), task.allocation.requeued_id)
    record_short(task, Ending(reason), 0)
    return 0


def _close_lost(task: Task, client: SlurmClient, own_job_id: int | None = None) -> list[Attempt]:
    """Return the attempts, after closing those left open; as recorded where Slurm does not answer."""
    try:
        return close_lost_attempts(task.paths, client, own_job_id, task.allocation.cluster, judge_lost(task.paths))
    except SlurmError as error:
        task.log.add_line(f"opsctl: attempts that were left open stay open: {error}")
        return attempts_file.read(task.paths)


def _train(task: Task, signals: Signals, patience: WaitPolicy, handler: RequestHandler) -> int:
    """Wait for the lease, then train."""
    was_open = {attempt.id for attempt in attempts_file.read(task.paths) if attempt.is_open}
    if handler.attempt is not None and handler.attempt.id in was_open:  # the disk was full
        record_end(task, handler.attempt)
    attempts = _close_lost(task, task.client, task.allocation.requeued_id)
    deadline = time.monotonic() + _COMPLETING_S
    while any(attempt.is_open for attempt in attempts) and time.monotonic() < deadline and not signals.any:
        time.sleep(1)
        attempts = _close_lost(task, task.client)
    for attempt in attempts:
        if attempt.closed_by not in ("", "job") and (attempt.id in was_open or attempt is attempts[-1]):
            task.log.add_line(lost_line(attempt))
    if any(attempt.id in was_open and not attempt.is_open for attempt in attempts):
        keep_off_bad_nodes(task)
    _ask_survivors_to_leave(task, [attempt for attempt in attempts if attempt.id in was_open])
    if has_to_stop(task, attempts):
        return stop_chain(task, attempts)
    attempt_id = new_attempt_id(task)
    handler.attempt_ids.append(attempt_id)
    try:
        turn = _turn(task, attempt_id, signals, patience, handler)
    except OSError as error:
        return _leave_without_lease(task, Ending.FAILED, f"no lease to be had: {error.filename}: {error.strerror}")
    if not isinstance(turn, OwnLease):
        code = _leave_at_once(task)
        if code is None and turn is None and handler.to_end is not None:
            code = _leave_as_asked(task, handler.to_end)
        return _leave_without_lease(task, Ending.HELD, _why_held(turn, signals)) if code is None else code
    try:
        with LeaseHeartbeat(turn) as heartbeat:
            return _train_with_lease(task, signals, handler, heartbeat)
    finally:
        try:
            turn.end("released", END_WAIT_S)
        except OSError as error:
            task.log.add_line(
                f"opsctl: the lease could not be released: {error.strerror}; it expires when this job has ended"
            )


def _turn(
    task: Task, attempt_id: str, signals: Signals, patience: WaitPolicy, handler: RequestHandler
) -> OwnLease | Held | None:
    """Return the lease, or the holder that keeps it; None where there is no reason left to wait."""
    job = task.allocation

    def take(why_over: Callable[[Held], str | None]) -> OwnLease | Held:
        return lease.take(task.paths, attempt_id, job.job_id, job.user, why_over)

    def attempts(ask: bool) -> list[Attempt]:
        return _close_lost(task, client_for(task.cluster)) if ask else attempts_file.read(task.paths)

    def leaves() -> bool:
        for line in handler.news():
            task.log.add_line(line)
        return _is_to_leave(task, signals, handler) or task.is_finished()

    return wait_for_turn(take, attempts, job.requeued_id, task.log, leaves, patience)


def _why_held(turn: Held | None, signals: Signals) -> str:
    if turn is None:
        return f"the job got {signals.names()} while it waited for the lease"
    return f"{turn.holder.named()} trains this run (lease {turn.holder.number}, its heartbeat continues)"


def _leave_as_asked(task: Task, to_end: ToEnd) -> int:
    task.log.add_line(f"opsctl: {to_end.words()}: this job leaves")
    ending = Ending.REQUEUED if to_end.ending == Ending.REQUEUED else Ending.CANCELLED
    record_short(task, ending, 0, to_end.words())
    return 0


def _leave_without_lease(task: Task, ending: Ending, why: str) -> int:
    """Report and record why nothing was started, and fail."""
    task.log.add_line(f"opsctl: {why}: this job leaves")
    record_short(task, ending, 1, why)
    chain = task.allocation.array_job_id
    if ending == Ending.HELD and keeps_losing_the_lease(attempts_file.read(task.paths), chain):
        task.log.add_line(
            f"opsctl: the {FAILURE_LIMIT - 1} tasks before it did not get the lease either: this chain stops"
        )
        cancel_pending(task, lambda: [chain])
    what = "end it, or wait for its end, then opsctl submit" if ending == Ending.HELD else "fix that"
    message(f"opsctl: {why}; nothing was trained: {what}")
    return 1


def _train_with_lease(task: Task, signals: Signals, handler: RequestHandler, heartbeat: LeaseHeartbeat) -> int:
    start = prepared_start(task)
    code = _leave_at_once(task)  # while this one waited, another may have come to the end
    if code is not None:
        return code
    folder = task.paths.attempt_folder(task.allocation.job_id)
    set_aside(folder)
    make_folder(task.paths.output, folder)
    attempts = attempts_file.read(task.paths)
    attempt = new_attempt(task, len(attempts) + 1, handler.attempt_ids[-1])
    attempts_file.append_opened(task.paths, attempt)
    task.log.add_line(start_line(task, attempt))
    back = went_back(attempt.iteration_at_start, attempts, _rollbacks(task))
    if back:
        task.log.add_line(alert_line(f"{task.name}: {back}"))
    is_to_leave = partial(_is_to_leave, task, signals, handler)
    try:
        handler.task = task = on_good_nodes(task, attempt, handler.attempt, folder, is_to_leave)
        step_end, note = run_step(task, signals, folder, heartbeat, handler, start)
    except (OpsctlError, OSError) as error:
        # Nothing ran: the attempt still says why.
        task.log.add_line(f"opsctl: cannot start the step: {error}")
        step_end, note = StepEnd(exit_code=1), str(error)
        handler.unstarted = note
    paths = RunPaths(present_name(task.paths.output))  # where it was moved to, what is read by name is there
    ended = _ended(task, paths, attempt, step_end, "; ".join(filter(None, (note, back))))
    handler.attempt = ended = close(task, paths, ended, step_end)
    task.log.add_line(end_line(ended))
    if ended.exit_code:
        keep_off_bad_nodes(task)
    _close_lost(task, client_for(task.cluster))  # one whose job was still completing when this task began
    return 0 if ended.exit_code is None else ended.exit_code


def _is_to_leave(task: Task, signals: Signals, handler: RequestHandler) -> bool:
    return signals.any or handler.to_end is not None or kill_switch.is_triggered(task.kill_switch)


def _rollbacks(task: Task) -> list[Rollback]:
    try:
        return read_rollbacks(task.paths)
    except OSError as error:
        task.log.add_line(f"opsctl: rollbacks cannot be read: {error.filename}: {error.strerror}")
        return []


def _ended(task: Task, paths: RunPaths, attempt: Attempt, step_end: StepEnd, note: str) -> Attempt:
    """Close the attempt. Checkpoints of a job that has overtaken it are not its own."""
    evidence = read_evidence(paths.output, paths.attempt_folder(task.allocation.job_id))
    reached = last_checkpoint(paths.checkpoints)
    if step_end.overtaken or evidence.exit_reason == Ending.OVERTAKEN:
        reached = checkpoint_of(attempt, attempts_file.read(task.paths), reached)
        note = step_end.overtaken or note
    return closed(attempt, step_end, evidence, reached, now(), note=note)


def _ask_survivors_to_leave(task: Task, attempts: Sequence[Attempt]) -> None:
    """Ask old steps to stop: a lost node may still train into the folder."""
    for attempt in attempts:
        folder = task.paths.attempt_folder(attempt.job_id)
        if not attempt.is_open and attempt.job_id != task.allocation.job_id and folder.is_dir():
            with contextlib.suppress(OSError):
                why = f"job {task.allocation.job_id} resumes from here"
                request_stop(task.paths.output, task.paths.stop_request(attempt.job_id), why)
