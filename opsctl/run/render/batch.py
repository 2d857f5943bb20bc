"""The batch script that submit hands to sbatch: small, stable, everything Slurm needs in its directives. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from opsctl.core.errors import RunFileError
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.job_comment import JobComment
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import RunFile
from opsctl.run.render.templates import cluster_lines, filename_pattern, render_template
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.durations import parse_duration_s

#: sbatch takes the warning's time in seconds up to this.
_LONGEST_WARNING_S = 65535


@dataclass(frozen=True)
class ChainRequest:
    """What one chain of array tasks asks for beside the run file."""

    array: str  # as sbatch --array takes it
    run_id: str
    token: str  # finds this very submission again
    submitted_at: datetime  # with zone
    python: str  # absolute path of the interpreter that has opsctl
    folder: str  # where the jobs' working folder is
    nodes: int | None = None  # instead of the run file's
    exclude: str | None = None  # beside the run file's
    begin: str | None = None
    hold: bool = False
    after: tuple[str, ...] = ()  # ids of the arrays it waits for
    arguments: tuple[str, ...] = ()  # one-off trainer arguments of this chain
    exports: tuple[tuple[str, str], ...] = ()  # see `templates.exports_of`


def batch_script(run: ExpandedRun, cluster: Cluster, request: ChainRequest) -> str:
    """The whole script. Raises RunFileError for a value that no script line can hold."""
    return render_template(
        "batch.sh.j2",
        directives=[(name, value) for name, value in _directives(run.file, run.paths, request) if value != ""],
        extra=run.file.slurm.extra,
        exports=request.exports,
        cluster=cluster_lines(cluster),
        python=request.python,
        output=run.paths.output,
        submitted_at=request.submitted_at.isoformat(timespec="seconds"),
        publish=run.file.run.publish,
        spare=run.file.slurm.spare,
        own_outputs=run.paths.job_outputs if _opens_its_output(run.file) else None,
        arguments=request.arguments,
    )


def _directives(file: RunFile, paths: RunPaths, request: ChainRequest) -> list[tuple[str, str | None]]:
    """(option, value) in the order a person would write them; None: an option without a value, "": leave it out."""
    slurm = file.slurm
    gpu = f"gpu:{slurm.gpu_type}:" if slurm.gpu_type else "gpu:"
    excluded = ",".join(filter(None, (slurm.exclude, request.exclude)))
    warning_s = min(parse_duration_s(slurm.exit_margin), _LONGEST_WARNING_S)
    return [
        ("job-name", file.run.name),
        ("comment", str(JobComment(request.run_id, request.token))),
        ("partition", slurm.partition or ""),
        ("account", slurm.account or ""),
        ("qos", slurm.qos or ""),
        ("reservation", slurm.reservation or ""),
        ("constraint", slurm.constraint or ""),
        ("nodes", str((request.nodes or slurm.nodes) + slurm.spare)),
        ("ntasks-per-node", "1"),  # one launcher a node, which forks the ranks
        ("cpus-per-task", "" if slurm.cpus_per_task is None else str(slurm.cpus_per_task)),
        ("gres", f"{gpu}{slurm.gpus_per_node}"),
        ("time", slurm.time),
        ("nice", "" if slurm.nice is None else str(slurm.nice)),
        ("exclude", excluded),
        ("array", request.array),
        ("begin", request.begin or ""),
        # afterany, not afterok: after a crash the training must go on.
        ("dependency", "afterany:" + ":".join(request.after) if request.after else ""),
        ("hold", None if request.hold else ""),
        # A dependency that can never come true stays visible, for the watch to cry about, instead of vanishing.
        ("kill-on-invalid-dep", "no"),
        # The next task of the array goes on after a lost node; a requeued one would be two attempts under one id.
        ("no-requeue", None),
        # With spare nodes the same job goes on without the lost one.
        ("no-kill", None if slurm.spare else ""),
        ("signal", f"B:USR1@{warning_s}"),
        ("chdir", request.folder),
        ("output", "/dev/null" if _opens_its_output(file) else f"{filename_pattern(paths.job_outputs)}/%x-%A_%a.out"),
        ("open-mode", "append"),
        ("export", "NONE"),
    ]


def _opens_its_output(file: RunFile) -> bool:
    """Whether the script opens the job's output file, and not Slurm.

    Slurm follows a link that lies there, and appends to whatever it leads to as the job's owner. Where members decide
    what tasks run, that gives them nothing new.
    """
    return file.run.publish == "owner"


#: The kernel takes 128 KiB for one variable, its name and a little more included.
LARGEST_BYTES = 120 * 1024


def step_script(run: ExpandedRun) -> str:
    """Return the step script, which is given the launcher's command. Raises RunFileError if it is too long."""
    text = render_template("step.sh.j2", environment=run.file.run.environment, env=sorted(run.file.env.items()))
    size = len(text.encode())
    if size > LARGEST_BYTES:
        raise RunFileError(
            f"{run.path}: [env] makes a step script of {size:,} bytes, more than the {LARGEST_BYTES:,} that a process "
            "can be given: set large values in the environment script"
        )
    return text
