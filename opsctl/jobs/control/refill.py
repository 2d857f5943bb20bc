"""Keeping a run in the queue: as many arrays behind the live one as its run file says, or one where nothing is.

A refill starts nothing that was never submitted, and leaves alone what a person has stopped. Several users may call it
at once, as often as they like.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import iso
from opsctl.jobs.control import live_jobs, overlap
from opsctl.jobs.control.published import Further, further_chain, send_further
from opsctl.jobs.control.send_chain import Submitted
from opsctl.run.attempts.events import Attempt, read
from opsctl.run.attempts.failure_limit import FAILURE_LIMIT, failed_too_often
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE
from opsctl.run.attempts.hidden_jobs import describe as describe_unseen
from opsctl.run.checkpoints.inventory import Checkpoint, is_finished, last_checkpoint, length
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import SlurmTable
from opsctl.run.logs.measurements import recent, training_left_s
from opsctl.run.logs.records import Measured
from opsctl.run.state import kill_switch
from opsctl.run.state.chains import REFILL, Cancel, Chain, last_word, read_cancels, read_chains, resting
from opsctl.run.state.identity import refuse_a_copy
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.run.state.revisions import OwnersAlone
from opsctl.slurm.arrays import arrays_behind, arrays_missing, count_tasks
from opsctl.slurm.client import SlurmReader
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.durations import parse_duration_s
from opsctl.slurm.types import Job


class Word(StrEnum):
    """The decision about a run's queue."""

    ENOUGH = "enough"  # is queued
    RESTS = "rests"  # a person stopped it, or it is finished
    STUCK = "stuck"  # a person has to look before more of it may be queued
    MISSING = "missing"


@dataclass(frozen=True)
class Decision:
    """The decision of a refill with its reason."""

    word: Word
    why: str
    arrays: int = 0  # to submit, with Word.MISSING


@dataclass(frozen=True)
class Upkeep:
    """The settings and facts that decide how many arrays of a run are queued."""

    keep_queued: int  # arrays behind the live one
    tasks: int  # of each new array
    per_task_s: float  # for how long each of them trains
    left_s: float | None  # of training; None if unknown


@dataclass(frozen=True)
class Files:
    """The facts in the run's folder that a refill needs."""

    further: Further | None  # None: it can have no further chain, `problem` says why
    problem: str
    left_to_owner: bool  # and the reader is another user
    chains: tuple[Chain, ...]
    cancels: tuple[Cancel, ...]
    attempts: tuple[Attempt, ...]
    switch: KillSwitchState
    checkpoint: Checkpoint | None
    measured: Measured


@dataclass(frozen=True)
class Refilled:
    """The effect of a refill, or with a dry run the planned effect."""

    decision: Decision
    submitted: tuple[Submitted, ...] = ()
    was_whose: str = ""  # the owner of the newest chain before
    left_out: tuple[str, ...] = ()  # one-off arguments of that chain, which belong to it alone

    @property
    def needs_somebody(self) -> bool:
        """Return whether a person has to look."""
        return self.decision.word is Word.STUCK


def refill(paths: RunPaths, cluster: Cluster, client: SlurmReader, dry_run: bool = False) -> Refilled:
    """Submit what is missing in the run's queue, and say what was, or why nothing.

    The first look, which `client` may take from an answer that several runs share, only says whether anything may be
    missing. What is submitted follows from a second one, under the run's lock. Raises OpsctlError where that cannot be
    told or done, SlurmError with Slurm's refusal, SlurmUnreachable when it does not answer.
    """
    refuse_a_copy(paths, "refill")
    files = read_files(paths)
    decision = rests(files) or decide(files, live_jobs.snapshot(paths, cluster, client))
    whose = files.chains[-1].user if files.chains else ""
    if decision.word is not Word.MISSING or dry_run:
        return Refilled(decision, (), whose)
    with live_jobs.run_lock(paths, "refill"):
        return _refilled(paths, cluster)


def _refilled(paths: RunPaths, cluster: Cluster) -> Refilled:
    """Check again and submit. The caller holds the run's lock."""
    from opsctl.slurm.backends import client_for

    client = client_for(cluster)
    files = read_files(paths)
    live = live_jobs.settled(paths, cluster, client)
    if len(read_chains(paths)) != len(files.chains):  # one that was cut off is on record now
        files = read_files(paths)
    decision = decide(files, live)
    whose = files.chains[-1].user if files.chains else ""
    if decision.word is not Word.MISSING or files.further is None:
        return Refilled(decision, (), whose)
    if trains := live_jobs.unseen_writer(paths, live, cluster, client):
        return Refilled(Decision(Word.STUCK, f"{trains} trains it, which the queue does not show here"), (), whose)
    done: list[Submitted] = []
    while len(done) < decision.arrays:
        ahead = tuple(str(one.chain.chain) for one in done)
        try:
            done += send_further(files.further, cluster, client, live, REFILL, ahead).all
        except OpsctlError as error:
            if not done:
                raise
            why = f"{decision.why}; then no more: {error}"
            return Refilled(Decision(Word.STUCK, why, decision.arrays), tuple(done), whose)
    return Refilled(decision, tuple(done), whose, files.further.left_out)


def read_files(paths: RunPaths) -> Files:
    """All that the run's folder says. Raises OpsctlError where it cannot be seen, OSError where it cannot be read."""
    further, problem, left_to_owner = None, "", False
    chains = tuple(read_chains(paths))
    if chains:
        try:
            further = further_chain(paths)
        except OpsctlError as error:
            problem, left_to_owner = str(error), isinstance(error, OwnersAlone)
    return Files(
        further=further,
        problem=problem,
        left_to_owner=left_to_owner,
        chains=chains,
        cancels=tuple(read_cancels(paths)),
        attempts=tuple(read(paths)),
        switch=kill_switch.state(paths),
        checkpoint=last_checkpoint(paths.checkpoints),
        measured=recent(paths),
    )


def rests(files: Files) -> Decision | None:
    """Why nothing is to be queued whatever the queue holds; None where it has to be looked at. Pure."""
    if not files.chains:
        return Decision(Word.RESTS, "never submitted")
    if files.switch.is_triggered:
        return Decision(Word.RESTS, f"not refilled: the kill switch is triggered {files.switch.describe()}")
    further = files.further
    if further is None:
        word = Word.RESTS if files.left_to_owner else Word.STUCK
        return Decision(word, f"not refilled: {files.problem}")
    if is_finished(further.run.options, files.checkpoint):
        return Decision(Word.RESTS, "finished, nothing to do")
    if not further.revision.file.array.keep_queued:
        return Decision(Word.RESTS, "not refilled: [array] keep_queued = 0")
    cancel = resting(files.chains, files.cancels)
    if cancel is not None:
        what = "its queued tasks" if cancel.queued_only else "it"
        said = f"not refilled: {cancel.by} cancelled {what} at {iso(cancel.at, 'minutes')}; opsctl submit lifts that"
        return Decision(Word.RESTS, said)
    return stopped_by_failures(files.chains, files.attempts)


def stopped_by_failures(chains: Sequence[Chain], attempts: Sequence[Attempt]) -> Decision | None:
    """Return why nothing is to be queued after too many failures; else None. Pure."""
    wanted = last_word(chains)
    if wanted is None or not failed_too_often(attempts, wanted.submitted_at):
        return None
    row = f"{FAILURE_LIMIT} attempts in a row without a new checkpoint, or one that stopped itself"
    said = f"not refilled: {row}. To see why: opsctl attempts"
    return Decision(Word.STUCK, f"{said}; to continue: opsctl submit")


def decide(files: Files, live: live_jobs.LiveJobs) -> Decision:
    """Decide from the run's files and one snapshot of the queue. Pure."""
    found, further = rests(files), files.further
    if found is not None or further is None:
        return found or Decision(Word.STUCK, f"not refilled: {files.problem}")
    slurm, keep = further.revision.file.slurm, further.revision.file.array.keep_queued
    upkeep = Upkeep(keep, count_tasks(further.array), per_task_s(slurm), _left_s(files, further))
    return of_the_queue(files.chains, files.attempts, live, upkeep)


def of_the_queue(
    chains: Sequence[Chain], attempts: Sequence[Attempt], live: live_jobs.LiveJobs, upkeep: Upkeep
) -> Decision:
    """Decide about the queue of a run that nothing prevents from continuing. Pure."""
    if live.unseen:
        said = f"not refilled: {CANNOT_SEE}, and {describe_unseen(live.unseen)} may be queued or running"
        return Decision(Word.STUCK, said)
    stuck = [job for job in live.jobs if job.is_held or job.cannot_start]
    if stuck:
        return Decision(Word.STUCK, f"not refilled: {_why_stuck(stuck)}")
    in_vain, keep = refilled_without_attempt(chains, attempts, live.jobs), upkeep.keep_queued
    # As many as are kept may have been taken out of the queue at once, before any of them began.
    if len(in_vain) >= FAILURE_LIMIT + keep:
        shown = ", ".join(str(one.chain) for one in in_vain)
        said = f"not refilled: the last arrays ({shown}) left the queue without a recorded attempt"
        return Decision(
            Word.STUCK, f"{said}; to see why: sacct -j {in_vain[-1].chain}, and logs/; to continue: opsctl submit"
        )
    missing = arrays_missing(live.jobs, keep, upkeep.left_s, upkeep.per_task_s, upkeep.tasks)
    queued = len(arrays_behind(live.jobs))
    if missing:
        there = f"{_arrays(queued)} queued behind the live one" if live.jobs else "nothing in the queue"
        return Decision(Word.MISSING, there, missing)
    enough = "" if queued >= keep else ", enough for the rest of the training"
    return Decision(Word.ENOUGH, f"{_arrays(queued)} queued{enough}, nothing to do")


def refilled_without_attempt(
    chains: Sequence[Chain], attempts: Sequence[Attempt], live_jobs: Sequence[Job]
) -> list[Chain]:
    """Return the newest refilled chains in a row that are no longer queued and left no record. Pure.

    Their tasks ended before they could record an attempt, so the failure limit does not count them.
    """
    there = {job.array_job_id for job in live_jobs} | {one.array_job_id or one.job_id for one in attempts}
    row: list[Chain] = []
    for chain in reversed(chains):
        if chain.is_somebodys_word or chain.chain in there:
            break
        row.append(chain)
    return row[::-1]


def per_task_s(slurm: SlurmTable) -> float:
    """For how long a task trains: its time limit, less what it keeps for leaving."""
    return max(0.0, float(parse_duration_s(slurm.time) - parse_duration_s(slurm.exit_margin)))


def _left_s(files: Files, further: Further) -> float | None:
    saved = files.checkpoint
    return training_left_s(
        files.measured,
        *length(further.run.options, saved),
        saved.consumed_train_samples if saved else None,
        saved.iteration if saved else None,
    )


def _why_stuck(jobs: Sequence[Job]) -> str:
    held = [job for job in jobs if job.is_held]
    if held:
        return f"{overlap.describe(held)} is held ({held[0].reason}); scontrol release {held[0].array_job_id}"
    return f"{overlap.describe(jobs)} can never start ({jobs[0].reason}); opsctl cancel --queued, then opsctl submit"


def _arrays(number: int) -> str:
    return f"{number} array{'' if number == 1 else 's'}"


def line_of(name: str, done: Refilled, dry_run: bool = False) -> str:
    """Return the line that a person reads."""
    decision = done.decision
    if not done.submitted:
        if decision.word is not Word.MISSING:
            return f"{name}: {decision.why}"
        return f"{name}: {'would submit' if dry_run else 'missing'} {_arrays(decision.arrays)}: {decision.why}"
    me, parts = account_name(), []
    for one in done.submitted:
        behind = f" behind {', '.join(one.chain.after)}" if one.chain.after else ""
        parts.append(f"{one.chain.chain}{behind}")
    said = f"{name}: submitted {'; '.join(parts)}"
    if done.was_whose not in ("", me):
        said += f", now {me}'s: the chain before was {done.was_whose}'s"
    if done.left_out:
        said += f", without {shlex.join(done.left_out)}, which only the chain before was given"
    return said + (f"; {decision.why}" if done.needs_somebody else "")


def state_of(done: Refilled) -> str:
    """Return the result for programs: a Word, or `submitted`."""
    return "submitted" if done.submitted and not done.needs_somebody else str(done.decision.word)
