"""The later tasks of a chain: they wait for this one, and are cancelled at the failure limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from opsctl.core.errors import SlurmError
from opsctl.core.output import message
from opsctl.jobs.runner.own_attempt import record_short
from opsctl.jobs.runner.task import Task
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import chains_to_cancel, failed_too_often, learned_nothing, without_progress
from opsctl.run.attempts.outcome import describe
from opsctl.run.logs.pulse import alert_line
from opsctl.run.state.chains import counted_since, read_chains, recorded
from opsctl.slurm.backends import client_for


def hold_next_task(task: Task) -> None:
    """Let what is pending of the task's array wait for the end of this job, which continues without a node.

    Slurm no longer counts such a job (--no-kill) as a running task of its array, and would start the next one beside
    it, in spite of %1 (22.05). Not earlier: where the first node is lost, nothing ends this job before its time limit,
    and the next task has to start.
    """
    try:
        client_for(task.cluster).start_after(_pending(task), task.allocation.job_id)
    except SlurmError as error:
        task.log.add_line(f"opsctl: the next task may start before the end of this job: {error}")


def has_next_task(task: Task) -> bool:
    """Return whether another task of the array waits in the queue; False also where Slurm does not answer."""
    try:
        return bool(_pending(task))
    except SlurmError:
        return False


def _pending(task: Task) -> list[str]:
    """Return the ids of the array's tasks in the queue. Raises SlurmError."""
    job = task.allocation
    rows = client_for(task.cluster).jobs(job_ids=[job.array_job_id]) if job.array_task else []
    return [one.tasks_id for one in rows if one.is_pending]


def has_to_stop(task: Task, attempts: Sequence[Attempt]) -> bool:
    """Return whether what has been tried since people last did something says that this would only fail again."""
    return failed_too_often(attempts, counting_since(task))


def counting_since(task: Task) -> datetime:
    """Return since when attempts count; the chain's own submission where the records cannot be read."""
    try:
        return counted_since(read_chains(task.paths), task.submitted_at)
    except OSError:
        return task.submitted_at


def stop_chain(task: Task, attempts: Sequence[Attempt]) -> int:
    """Cancel what would only fail again, say so, fail."""
    row = without_progress(attempts, counting_since(task))
    last = next((item for item in reversed(attempts) if item.reason), None)
    why = f"the last ended with {last.reason}" if last else "nothing is known about them"
    if last and last.verdict and last.verdict.is_known:
        why += f" ({last.verdict.words})"
    elif last and last.first_failure:
        why += f" ({describe(last.first_failure)})"
    elif last and last.note:
        why += f" ({last.note})"
    found = f"{row} attempts in a row without a new checkpoint"
    if learned_nothing(attempts, counting_since(task)):
        found = "the training stopped itself, as too many iterations in a row were skipped or had no finite loss"
    said = f"{found}: this chain stops; {why}"
    task.log.add_line(alert_line(f"{task.name}: {said}"))
    known = recorded(task.paths)
    cancel_pending(
        task,
        lambda: chains_to_cancel(
            known.own(task.client.jobs(users=[task.allocation.user])), attempts, task.allocation.user, known.chains
        ),
    )
    record_short(task, Ending.BRAKE, 1)
    message(f"opsctl: {said}; when it is fixed, opsctl submit starts again")
    return 1


def cancel_pending(task: Task, find: Callable[[], list[int]]) -> None:
    """Cancel what is pending of the chains that `find` gives, and say so."""
    try:
        chains = find()
        task.client.cancel(chains, pending_only=True)
        task.log.add_line(f"opsctl: cancelled the pending tasks of {', '.join(map(str, chains)) or 'no chain'}")
    except (SlurmError, OSError) as error:
        task.log.add_line(f"opsctl: the pending tasks could not be cancelled: {error}")
