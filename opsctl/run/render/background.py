"""The batch script of an errand's job. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.run.render.templates import cluster_lines, filename_pattern, render_template
from opsctl.slurm.cluster import Cluster

#: Before the limit, to end the command cleanly and to submit the next job; less where the limit itself is short.
WARNING_S = 180
#: Where its jobs start: the command then goes to where it was typed.
WORK_FOLDER = "/"


@dataclass(frozen=True)
class ErrandRequest:
    """What one job of an errand asks for."""

    name: str  # the job's
    comment: str
    errand: str
    number: int  # of this job among the errand's, from 1 on
    options: Sequence[tuple[str, str]]  # of sbatch, as the profile and the command line say
    limit_s: int
    output: str  # absolute
    cluster: Cluster
    python: str  # absolute path of the interpreter that has opsctl
    locale: str = ""  # the caller's LC_ALL, where there is one: Slurm's commands are asked without


def errand_script(request: ErrandRequest) -> str:
    """The whole script. Raises RunFileError for a value that no script line can hold."""
    directives = [
        ("job-name", request.name),
        ("comment", request.comment),
        *request.options,
        ("nodes", "1"),
        ("ntasks", "1"),
        ("signal", f"B:USR1@{warning_s(request.limit_s)}"),
        # After a lost node Slurm starts it again by itself; nothing else of it would be left to do so.
        ("requeue", None),
        ("chdir", WORK_FOLDER),
        ("output", filename_pattern(request.output)),
        ("open-mode", "append"),
        # The command is to find what it would find where it was typed; no value of it is written down here.
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
    """Seconds before a limit of `limit_s` at which Slurm warns the job."""
    return min(WARNING_S, limit_s // 4)
