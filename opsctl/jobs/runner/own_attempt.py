"""The attempt that a task itself makes: put on record, and told in the training log."""

from __future__ import annotations

import secrets

import msgspec

from opsctl.core.timestamps import now
from opsctl.diagnosis.triage.findings import SlurmEnd
from opsctl.diagnosis.triage.on_close import CLOSING_S, ENDING_S, note_node, verdict_of
from opsctl.diagnosis.triage.report import verdict_line
from opsctl.jobs.runner.task import Task
from opsctl.run.attempts import events as attempts_file
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.kill_switch_readers import folder_inode
from opsctl.run.attempts.outcome import Evidence, StepEnd, closed, describe
from opsctl.run.checkpoints.inventory import last_checkpoint
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.lines import AttemptEnd, AttemptStart, write_attempt_end, write_attempt_start

#: Ends after which little time is left.
_BY_SLURM = frozenset({Ending.CANCELLED, Ending.PREEMPTED, Ending.TIME_LIMIT})


def new_attempt_id(task: Task) -> str:
    """Return an id that is unique even if Slurm's job ids start over."""
    return f"{task.allocation.job_id}-{secrets.token_hex(4)}"


def new_attempt(task: Task, number: int, attempt_id: str) -> Attempt:
    """Return the attempt that `task` opens now."""
    checkpoint = last_checkpoint(task.paths.checkpoints)
    job = task.allocation
    return Attempt(
        number=number,
        id=attempt_id,
        job_id=job.job_id,
        array_job_id=job.array_job_id,
        array_task=job.array_task,
        chain_submitted_at=task.submitted_at,
        revision=task.revision.name,
        user=job.user,
        cluster=job.cluster,
        nodes=job.nodes,
        opened_at=now(),
        kill_switch_path=str(task.kill_switch),
        kill_switch_inode=folder_inode(task.kill_switch),
        iteration_at_start=checkpoint.iteration if checkpoint else None,
        restart=task.restart,
        fewer_nodes=task.fewer_nodes,
    )


def record_short(task: Task, ending: Ending, exit_code: int, note: str = "left at its start") -> None:
    """Record an attempt that started no step: opened and closed at once."""
    attempt = new_attempt(task, 0, new_attempt_id(task))
    evidence = Evidence(exit_reason=ending)
    checkpoint = last_checkpoint(task.paths.checkpoints)
    ended = closed(attempt, StepEnd(exit_code), evidence, checkpoint, now(), note=note)
    attempts_file.append_opened(task.paths, attempt)
    attempts_file.append_closed(task.paths, ended)


def start_line(task: Task, attempt: Attempt) -> str:
    """Return the line of the training log at the start of the attempt."""
    job = task.allocation
    start = AttemptStart(
        at=now(),
        attempt=attempt.number,
        job=job.display_id,
        job_id=job.job_id,
        requeues=job.restart_count,
        revision=task.revision.name,
        iteration=attempt.iteration_at_start,
        nodes=job.nodes,
    )
    return write_attempt_start(start)


def end_line(ended: Attempt) -> str:
    """Return the line of the training log at the end of the attempt."""
    end = AttemptEnd(
        at=now(),
        attempt=ended.number,
        reason=str(ended.reason),
        exit_code=ended.exit_code,
        checkpoint=ended.checkpoint_at_end,
        first_failure=describe(ended.first_failure) if ended.first_failure else "",
    )
    return write_attempt_end(end)


def lost_line(ended: Attempt) -> str:
    """Return the line of the training log about an attempt that could not record its end."""
    note = f" ({ended.note})" if ended.note else ""
    return f"opsctl: attempt {ended.number}, job {ended.display_id}, did not record its end: {ended.reason}{note}"


def with_verdict(task: Task, paths: RunPaths, ended: Attempt, step_end: StepEnd) -> Attempt:
    """Return `ended` with its cause, which is written to the training log; record the evidence against nodes.

    Without a result in time there is no verdict. While Slurm ends the job, that time is short.
    """
    verdict = ended.verdict  # of a step that hung
    if verdict is None:
        word = SlurmEnd(step_end.slurm_state, step_end.lost_nodes, ended.exit_code, ended.signal)
        is_ending = step_end.was_asked_to_end or ended.reason in _BY_SLURM
        verdict = verdict_of(paths, ended, word, ENDING_S if is_ending else CLOSING_S, task.log.add_line)
    if verdict is None:
        return ended
    task.log.add_line(verdict_line(verdict))
    note_node(paths, ended, verdict)
    return msgspec.structs.replace(ended, verdict=verdict)


def close(task: Task, paths: RunPaths, ended: Attempt, step_end: StepEnd) -> Attempt:
    """Put on record that it has ended, then what killed it. Returns `ended` with that.

    The verdict takes its time, in which this process may be killed: the first closing is on record before.
    """
    is_on_record = record_end(task, ended)
    judged = with_verdict(task, paths, ended, step_end)
    if judged != ended or not is_on_record:
        record_end(task, judged)
    return judged


def record_end(task: Task, ended: Attempt) -> bool:
    """Append the closing of an attempt; return False, and report why, if that is not possible."""
    try:
        attempts_file.append_closed(task.paths, ended)
    except OSError as error:  # a full disk must not cost the exit status
        task.log.add_line(f"opsctl: the end of the attempt cannot be put on record: {error.strerror}")
        return False
    return True
