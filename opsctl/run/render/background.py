"""The batch script of an errand's job. Pure."""

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
class ErrandRequest:
    """The request of one job of an errand."""

    name: str  # of the job
    comment: str
    errand: str
    number: int  # of this job among the errand's, from 1
    options: Sequence[tuple[str, str]]  # of sbatch, by the profile and the command line
    limit_s: int
    output: str  # absolute
    cluster: Cluster
    python: str  # absolute path of the interpreter that has opsctl
    locale: str = ""  # the caller's LC_ALL, if set: Slurm's commands run without it


def errand_script(request: ErrandRequest) -> str:
    """Return the script. Raises RunFileError for a value that does not fit in a script line."""
    directives = [
        ("job-name", request.name),
        ("comment", request.comment),
        *request.options,
        ("nodes", "1"),
        ("ntasks", "1"),
        ("signal", f"B:USR1@{warning_s(request.limit_s)}"),
        # After a lost node Slurm restarts the job, because no other job of the errand exists.
        ("requeue", None),
        ("chdir", WORK_FOLDER),
        ("output", filename_pattern(request.output)),
        ("open-mode", "append"),
        # The command gets the environment of its submission; the script stores no values of it.
        ("export", "ALL"),
    ]
    return render_template(
        "errand.sh.j2",
        directives=directives,
        locale=request.locale,
        cluster=cluster_lines(request.cluster),
        python=request.python,
        errand=request.errand,
        number=request.number,
    )


def warning_s(limit_s: int) -> int:
    """Return the seconds before a limit of `limit_s` at which Slurm warns the job."""
    return min(WARNING_S, limit_s // 4)
