"""Asking Slurm for the job that evaluates a checkpoint: one, however often it is asked and by whomever."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import locked, make_folder
from opsctl.core.timestamps import iso, now
from opsctl.jobs.background.records import BackgroundCommand, CommandRecords, comment_of
from opsctl.jobs.background.submission import job_umask, new_command, start
from opsctl.jobs.evaluation.execute import choose_of_run, is_at_work
from opsctl.jobs.evaluation.records import BELIEVED, Due, Evaluated, Standing, append, lines_of, standing
from opsctl.jobs.tracked_job import TrackedJob, find, may_be_hidden
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import jobs_table
from opsctl.run.config.schema import EvaluationTable
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.job_match import Sent
from trainer.formats.checkpoint.manifest import tag_of

_LOCK_WAIT_S = 20.0


class AskedEvaluation(Struct, frozen=True, kw_only=True):
    """A checkpoint whose evaluation a Slurm job does."""

    run: Annotated[str, Meta(description="The run's name.")]
    iteration: Annotated[int, Meta(description="Which checkpoint.")]
    errand: Annotated[str, Meta(description="Its id in `opsctl jobs`; empty if no job was submitted now.")]
    job_id: Annotated[int, Meta(description="Its Slurm job; 0 if none was submitted now.")]
    why_not: Annotated[str, Meta(description="Reason why no job was submitted now; else empty.")]


def sbatch_options(table: EvaluationTable) -> dict[str, str | None]:
    """Return the sbatch options that differ from the profile's [jobs]."""
    return {
        **{
            key: value
            for key in ("partition", "account", "qos", "constraint", "time")
            if (value := getattr(table, key))
        },
        **({"gpus-per-node": str(table.gpus)} if table.gpus else {}),
    }


def commands_due(
    run: RunView, given: Mapping[str, object], step: int | None, again: bool, say: Callable[[str], None]
) -> Iterator[tuple[Due, BackgroundCommand]]:
    """Yield each checkpoint that is due with a new command that evaluates it.

    given: sbatch options, which take precedence over [evaluation] and the profile; None where not given. Raises
    OpsctlError if nothing can be chosen, and without a run file.
    """
    settings, chosen = choose_of_run(run, step, again, say)
    if run.loaded is None:
        raise OpsctlError(f"{run.problem}: a job needs the run file")
    run_file, cluster, umask = run.loaded.path, choose_cluster(None, run.paths), job_umask(run.table.group)
    options = {**sbatch_options(settings.table), **{key: str(one) for key, one in given.items() if one is not None}}
    make = partial(new_command, goes_on=True, internet=False, run=run.table.name)
    for due in chosen.due:
        words = ("evaluate", str(run_file), "--step", str(due.iteration), *(["--again"] * again))
        yield due, make(words, str(run_file.parent), umask, cluster, jobs_table(), options)


def ask_for(
    paths: RunPaths,
    name: str,
    due: Due,
    command: BackgroundCommand,
    place: CommandRecords,
    client: SlurmClient,
    again: bool = False,
) -> AskedEvaluation:
    """Have a job evaluate it, unless one does already. Raises OpsctlError, SlurmUnreachable where that is not known."""
    make_folder(paths.output, paths.evaluating)
    with locked(paths.output, paths.evaluating / "asking.lock", _LOCK_WAIT_S, f"ask for an evaluation of {name}"):
        stands = standing(lines_of(paths), due.iteration, due.of)
        why_not = _why_not(paths, due, stands, client, again)
        if why_not:
            return AskedEvaluation(run=name, iteration=due.iteration, errand="", job_id=0, why_not=why_not)
        _record(paths, due, command)  # before Slurm has it: an unrecorded job would be submitted twice
        try:
            command = start(place, client, command)
        except OpsctlError:
            if place.read(command.name) is None:  # Slurm does not have it
                _record(paths, due, command, "Slurm did not take it")
            raise
    return AskedEvaluation(
        run=name, iteration=due.iteration, errand=command.name, job_id=command.last.job_id, why_not=""
    )


def _record(paths: RunPaths, due: Due, command: BackgroundCommand, detail: str = "") -> None:
    line = Evaluated(
        iteration=due.iteration,
        what="withdrawn" if detail else "asked",
        of=due.of,
        at=now(),
        by=account_and_host(),
        errand=command.name,
        detail=detail,
    )
    try:
        append(paths, line)
    except OSError as error:
        raise OpsctlError(
            f"{tag_of(due.iteration)} cannot be recorded: {file_problem(error, paths.evaluations)}"
        ) from None


def _why_not(paths: RunPaths, due: Due, stands: Standing, client: SlurmClient, again: bool) -> str:
    if stands.is_done and not again:
        return "it was done meanwhile"
    if is_at_work(paths, due.iteration):
        return "it is being evaluated"
    line = stands.under_way
    if line is None or not _is_there(line, client):
        return ""
    return f"submitted at {iso(line.at, 'minutes')} by {line.by} as {line.errand}"


def _is_there(line: Evaluated, client: SlurmClient) -> bool:
    """Return whether Slurm may have that job. Raises SlurmUnreachable where that is not known."""
    user = line.by.partition("@")[0]
    job = TrackedJob(Sent(comment_of(line.errand), user), line.at, believed_until=line.at + BELIEVED)
    return find(job, client.jobs(users=[user])) is not None or may_be_hidden(job, client, now())
