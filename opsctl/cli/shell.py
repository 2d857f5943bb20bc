"""`opsctl shell`: an interactive job with a run's environment, or a shell beside what runs in a job already."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from opsctl.cli.selection import CommandWithRest, cluster_option, rest, run_argument

if TYPE_CHECKING:
    from opsctl.run.config.schema import RunFile
    from opsctl.run.state.run_view import RunView
    from opsctl.slurm.cluster import Cluster
    from opsctl.slurm.types import Job

_LIVE = "live"


@click.command(cls=CommandWithRest)
@run_argument
@click.option(
    "--into",
    is_flag=False,
    flag_value=_LIVE,
    metavar="[JOB]",
    help="Not a job of its own: into this one, 12 or 12_3; without an id into the run's live one.",
)
@click.option("--node", metavar="NODE", help="With --into: on which of its nodes [default: Slurm's choice].")
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help="How many nodes [default: 1].")
@click.option("--time", metavar="T", help="The job's limit, a Slurm duration [default: 1:00:00].")
@click.option("--partition", metavar="P", help="Where [default: the run's with --gpus, else the profile's [jobs]].")
@click.option("--gpus", type=click.IntRange(min=0), metavar="N", help="GPUs of each node [default: none].")
@click.option("--dry-run", is_flag=True, help="Print the command that would be run; run nothing.")
@cluster_option
def command(
    run: str | None,
    into: str | None,
    node: str | None,
    nodes: int | None,
    time: str | None,
    partition: str | None,
    gpus: int | None,
    dry_run: bool,
    cluster: str | None,
) -> None:
    """Open a shell on a node, with the run's environment script and [env], in its folder.

    As an interactive job of its own, or with --into beside what a job of yours is doing. $OPSCTL_RUN is the run. What
    stands after -- is run instead of a shell.
    """
    import shlex

    from opsctl.core.output import message, show_text
    from opsctl.run.render.shell import into_job, new_job
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.run.state.run_view import view
    from opsctl.slurm.backends import client_for

    _refuse_mixed({"--nodes": nodes, "--time": time, "--partition": partition}, into, node)
    seen = view(run)
    where = choose_cluster(cluster, seen.paths)
    file, of_what = file_of(seen)
    script = _script(seen, file, where)
    terminal = os.isatty(0) and os.isatty(1)
    if into is not None:
        job = _job(seen, client_for(where).jobs(), into)
        of_what += f", in job {job.display_id}"
        line = into_job(script, rest(), job.job_id, node, gpus, terminal)
    else:
        line = new_job(script, rest(), _options(file, nodes, time, partition, gpus), terminal)
    if dry_run:
        show_text(shlex.join(line))
        return
    message(f"{file.run.name}: environment of {of_what}")
    _become(line, _environment(where.environment()))


def _refuse_mixed(of_own_job: dict[str, object], into: str | None, node: str | None) -> None:
    """Raises UsageError for options of a job of its own beside `--into`, and the other way round."""
    wrong = next((name for name, value in of_own_job.items() if value is not None), None)
    if into is not None and wrong:
        raise click.UsageError(f"{wrong} is of a job of its own: leave it out with --into")
    if node is not None and into is None:
        raise click.UsageError("--node is of a job that is there: give --into too")


def _script(seen: RunView, file: RunFile, where: Cluster) -> str:
    """What the shell begins with: the run's environment, in its folder."""
    from opsctl.run.render.shell import ShellRequest, shell_script

    folder = seen.loaded.folder if seen.loaded is not None else seen.paths.output
    return shell_script(
        ShellRequest(
            run_file=str(seen.loaded.path if seen.loaded is not None else folder),
            folder=str(folder),
            environment=file.run.environment,
            env=file.env,
            shared=file.run.group is not None,
            cluster=where,
        )
    )


def _become(line: list[str], environment: dict[str, str]) -> NoReturn:
    """Let Slurm's program take this one's place. Raises UsageError where it is not to be found."""
    from opsctl.core.errors import UsageError
    from opsctl.core.process import find_program

    path = find_program(line[0], environment)
    if path is None:
        raise UsageError(f"{line[0]} is not on PATH: opsctl shell needs a machine with Slurm's commands")
    sys.stdout.flush()
    _forget()
    os.execve(path, line, environment)


def file_of(seen: RunView) -> tuple[RunFile, str]:
    """(the run file, expanded, that tasks would run with; what it is of)."""
    from opsctl.core.errors import RunFileError
    from opsctl.run.config.load import expanded_file

    if seen.revision is not None and not seen.revision.damage:
        return seen.revision.file, f"revision {seen.revision.name}"
    if seen.loaded is None:
        raise RunFileError(seen.problem)
    return expanded_file(seen.loaded), "the run file, of which nothing is published yet"


def _options(
    file: RunFile, nodes: int | None, time: str | None, partition: str | None, gpus: int | None
) -> dict[str, str | None]:
    """Of salloc: with GPUs as the run's own jobs ask, else as long commands do."""
    from opsctl.run.config.profile import jobs_table

    said = file.slurm if gpus else jobs_table()
    kind = f"gpu:{file.slurm.gpu_type}" if file.slurm.gpu_type else "gpu"
    return {
        "job-name": f"{file.run.name}-shell",
        "partition": partition or said.partition,
        "account": said.account,
        "qos": said.qos,
        "constraint": said.constraint,
        "nodes": str(nodes or 1),
        "ntasks-per-node": "1",
        "cpus-per-task": str(file.slurm.cpus_per_task) if gpus and file.slurm.cpus_per_task else None,
        "gres": f"{kind}:{gpus}" if gpus else None,
        "time": time or "1:00:00",
    }


def _job(seen: RunView, queue: list[Job], into: str) -> Job:
    """The job that runs and that `into` means. Raises OpsctlError."""
    from opsctl.core.account import account_name
    from opsctl.core.errors import OpsctlError
    from opsctl.run.state.chains import recorded

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
        raise OpsctlError(f"job {found[0].display_id} is {found[0].user}'s: Slurm lets only its owner in")
    raise OpsctlError(f"several run: opsctl shell --into {' or '.join(job.display_id for job in own)}")


def _environment(environment: dict[str, str]) -> dict[str, str]:
    """For a shell that people use: their own language, where Slurm is asked in plain C."""
    environment.pop("LC_ALL", None)
    return {**environment, **({"LC_ALL": os.environ["LC_ALL"]} if "LC_ALL" in os.environ else {})}


def _forget() -> None:
    """What Slurm has told others of this account does not have this job in it; nothing of ours runs afterwards."""
    from opsctl.slurm.cache import forget

    forget()
