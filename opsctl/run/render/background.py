"""The batch script of a background command's job. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.run.render.templates import cluster_lines, filename_pattern, render_template
from opsctl.slurm.cluster import Cluster

#: Seconds before the limit to end the command cleanly and submit the next job; less with a short limit.
WARNING_S = 180
#: The folder in which its jobs start; the command then changes to the folder of its submission.
WORK_FOLDER = "/"


@dataclass(frozen=True)
class CommandRequest:
    """The request of one job of a background command."""

    job_name: str
    comment: str
    name: str  # of the command
    number: int  # of this job among the command's, from 1
    options: Sequence[tuple[str, str]]  # of sbatch, by the profile and the command line
    limit_s: int
    output: str  # absolute
    cluster: Cluster
    python: str  # absolute path of the interpreter that has opsctl
    locale: str = ""  # the caller's LC_ALL, if set: Slurm's commands run without it


def command_script(request: CommandRequest) -> str:
    """Return the script. Raises RunFileError for a value that does not fit in a script line."""
    directives = [
        ("job-name", request.job_name),
        ("comment", request.comment),
        *request.options,
        ("nodes", "1"),
        ("ntasks", "1"),
        ("signal", f"B:USR1@{warning_s(request.limit_s)}"),
        # After a lost node Slurm restarts the job, because no other job of the command exists.
        ("requeue", None),
        ("chdir", WORK_FOLDER),
        ("output", filename_pattern(request.output)),
        ("open-mode", "append"),
        # The command gets the environment of its submission; the script stores no values of it.
        ("export", "ALL"),
    ]
    return render_template(
        "background.sh.j2",
        directives=directives,
        locale=request.locale,
        cluster=cluster_lines(request.cluster),
        python=request.python,
        command=request.name,
        number=request.number,
    )


def warning_s(limit_s: int) -> int:
    """Return the seconds before a limit of `limit_s` at which Slurm warns the job."""
    return min(WARNING_S, limit_s // 4)
