"""The batch script that submit passes to sbatch: small and stable, with all of Slurm's options as directives. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from opsctl.core.errors import RunFileError
from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import RunFile
from opsctl.run.render.templates import cluster_lines, filename_pattern, render_template
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.durations import parse_duration_s
from opsctl.slurm.job_match import JobComment

#: The longest warning time that sbatch accepts, in seconds.
_LONGEST_WARNING_S = 65535


@dataclass(frozen=True)
class ChainRequest:
    """The request of one chain of array tasks, in addition to the run file."""

    array: str  # in the form of sbatch --array
    run_id: str
    token: str  # identifies this submission
    submitted_at: datetime  # with zone
    python: str  # absolute path of the interpreter that has opsctl
    folder: str  # parent of the jobs' working folder
    nodes: int | None = None  # instead of the run file's
    exclude: str | None = None  # in addition to the run file's
    begin: str | None = None
    hold: bool = False
    after: tuple[str, ...] = ()  # ids of the arrays that it depends on
    arguments: tuple[str, ...] = ()  # one-off trainer arguments of this chain
    exports: tuple[tuple[str, str], ...] = ()  # see `templates.exports_of`


def batch_script(run: ExpandedRun, cluster: Cluster, request: ChainRequest) -> str:
    """Return the script. Raises RunFileError for a value that does not fit in a script line."""
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
    """Return (option, value) in the usual order; None: an option without a value; "": omit it."""
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
        ("ntasks-per-node", "1"),  # one launcher per node, which forks the ranks
        ("cpus-per-task", "" if slurm.cpus_per_task is None else str(slurm.cpus_per_task)),
        ("gres", f"{gpu}{slurm.gpus_per_node}"),
        ("time", slurm.time),
        ("nice", "" if slurm.nice is None else str(slurm.nice)),
        ("exclude", excluded),
        ("array", request.array),
        ("begin", request.begin or ""),
        # afterany, not afterok: after a crash the training must continue.
        ("dependency", "afterany:" + ":".join(request.after) if request.after else ""),
        ("hold", None if request.hold else ""),
        # A dependency that can never be satisfied stays visible for the watch, instead of vanishing.
        ("kill-on-invalid-dep", "no"),
        # The next task of the array resumes after a lost node; a requeued job would be two attempts under one id.
        ("no-requeue", None),
        # With spare nodes, or on fewer nodes, the same job continues without the lost one.
        ("no-kill", None if slurm.spare or slurm.min_nodes else ""),
        ("signal", f"B:USR1@{warning_s}"),
        ("chdir", request.folder),
        ("output", "/dev/null" if _opens_its_output(file) else f"{filename_pattern(paths.job_outputs)}/%x-%A_%a.out"),
        ("open-mode", "append"),
        ("export", "NONE"),
    ]


def _opens_its_output(file: RunFile) -> bool:
    """Return True if the script opens the job's output file instead of Slurm.

    Slurm follows a link of that name, and appends to its target as the job's owner. If group members control the
    tasks' programs, this gives them no additional access.
    """
    return file.run.publish == "owner"


#: The kernel limits one variable to 128 KiB, including its name.
LARGEST_BYTES = 120 * 1024


def step_script(run: ExpandedRun) -> str:
    """Return the step script, which gets the launcher's command. Raises RunFileError if it is too long."""
    text = render_template("step.sh.j2", environment=run.file.run.environment, env=sorted(run.file.env.items()))
    size = len(text.encode())
    if size > LARGEST_BYTES:
        raise RunFileError(
            f"{run.path}: [env] makes a step script of {size:,} bytes, more than the {LARGEST_BYTES:,} that a process "
            "can be given: set large values in the environment script"
        )
    return text
