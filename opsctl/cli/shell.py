"""`opsctl shell`: an interactive job with a run's environment, or a shell beside what runs in a job already."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

import click

from opsctl.cli.selection import CommandWithRest, cluster_option, rest, run_argument
from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, RunFileError, UsageError
from opsctl.core.output import message, show_text
from opsctl.core.process import find_program
from opsctl.run.config.load import expanded_file
from opsctl.run.config.profile import jobs_table
from opsctl.run.config.schema import JobsTable, RunFile, SlurmTable
from opsctl.run.render.shell import ShellRequest, allocation, into_job, new_job, shell_script
from opsctl.run.state.chains import recorded
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView, view
from opsctl.slurm.backends import client_for
from opsctl.slurm.cache import forget
from opsctl.slurm.types import Job

_LIVE = "live"


@click.command(cls=CommandWithRest)
@run_argument
@click.option(
    "--into",
    is_flag=False,
    flag_value=_LIVE,
    metavar="[JOB]",
    help="Open the shell in this running job, 12 or 12_3; without an id, in the run's live job.",
)
@click.option("--node", metavar="NODE", help="With --into: the node [default: Slurm's choice].")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="Number of nodes [default: 1].")
@click.option("--time", metavar="T", help="Time limit of the job, a Slurm duration [default: 1:00:00].")
@click.option("--partition", metavar="P", help="Partition [default: with --gpus the run's, else the profile's [jobs]].")
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs per node [default: none].")
@click.option("--dry-run", is_flag=True, help="Print the command; do not run it.")
@cluster_option
def command(
    run: str | None, into: str | None, node: str | None, dry_run: bool, cluster: str | None, **options: Any
) -> None:
    """Open a shell on a node with the run's environment, in the run's folder.

    Starts an interactive job, or with --into a step in one of your running jobs. $OPSCTL_RUN is set to the run. Words
    after -- are run in place of a shell.
    """
    own = next((name for name in ("nodes", "time", "partition") if options[name] is not None), None)
    if into is not None and own:
        raise click.UsageError(f"--{own} is for a new job: do not use it with --into")
    if node is not None and into is None:
        raise click.UsageError("--node is for a job that runs: give --into too")
    seen = view(run)
    where = choose_cluster(cluster, seen.paths)
    file, source = file_of(seen)
    folder = seen.loaded.folder if seen.loaded is not None else seen.paths.output
    script = shell_script(
        ShellRequest(
            run_file=str(seen.loaded.path if seen.loaded is not None else folder),
            folder=str(folder),
            environment=file.run.environment,
            env=file.env,
            shared=file.run.group is not None,
            cluster=where,
        )
    )
    terminal = os.isatty(0) and os.isatty(1)
    if into is not None:
        job = _job(seen, client_for(where).jobs(), into)
        source += f", in job {job.display_id}"
        line = into_job(script, rest(), job.job_id, node, options["gpus"], terminal)
    else:
        gpus, nodes, time = options["gpus"], options["nodes"] or 1, options["time"] or "1:00:00"
        table: SlurmTable | JobsTable = file.slurm if gpus else jobs_table()  # a job with GPUs is like the run's own
        asked = allocation("shell", file, table, nodes, gpus, time)
        asked["partition"] = options["partition"] or table.partition
        line = new_job(script, rest(), asked, terminal)
    if dry_run:
        show_text(shlex.join(line))
        return
    message(f"{file.run.name}: environment of {source}")
    environment = where.environment()
    environment.pop("LC_ALL", None)  # opsctl asks Slurm in plain C; a person has a language
    if "LC_ALL" in os.environ:
        environment["LC_ALL"] = os.environ["LC_ALL"]
    path = find_program(line[0], environment)
    if path is None:
        raise UsageError(f"{line[0]} is not on PATH: opsctl shell needs a machine with Slurm's commands")
    sys.stdout.flush()
    forget()  # this job is not in the cached answers, and nothing of opsctl runs afterwards
    os.execve(path, line, environment)


def file_of(seen: RunView) -> tuple[RunFile, str]:
    """Return the expanded run file that tasks would run with, and its source."""
    if seen.revision is not None and not seen.revision.damage:
        return seen.revision.file, f"revision {seen.revision.name}"
    if seen.loaded is None:
        raise RunFileError(seen.problem)
    return expanded_file(seen.loaded), "the run file, which is not published yet"


def _job(seen: RunView, queue: list[Job], into: str) -> Job:
    """Return the running job that `into` names. Raises OpsctlError."""
    if into == _LIVE:
        found = [job for job in recorded(seen.paths).own(queue) if job.is_running]
        which = f"{seen.table.name} has no job that runs"
    else:
        found = [job for job in queue if into in (job.display_id, str(job.job_id)) and job.is_running]
        which = f"no job {into} runs here: opsctl queue lists what there is"
    own = [job for job in found if job.user == account_name()]
    if len(own) == 1:
        return own[0]
    if not found:
        raise OpsctlError(which)
    if not own:
        raise OpsctlError(f"job {found[0].display_id} is {found[0].user}'s job: Slurm gives a shell only to its owner")
    raise OpsctlError(f"several run: opsctl shell --into {' or '.join(job.display_id for job in own)}")
