"""The script of a run's interactive shell, and the commands that open it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opsctl.run.config.schema import JobsTable, RunFile, SlurmTable
from opsctl.run.render.templates import cluster_lines, render_template
from opsctl.slurm.cluster import Cluster

#: The default command.
INTERACTIVE = ("bash", "-i")


@dataclass(frozen=True)
class ShellRequest:
    """The settings of the shell."""

    run_file: str  # absolute
    folder: str  # absolute
    environment: str | None  # the run's environment script
    env: Mapping[str, str]  # [env], expanded
    shared: bool  # a group shares the run
    cluster: Cluster


def shell_script(request: ShellRequest) -> str:
    """Return the script; it finally executes its arguments. Raises RunFileError for a value that fits in no line."""
    return render_template(
        "shell.sh.j2",
        umask="0007" if request.shared else "0022",
        environment=request.environment,
        env=sorted(request.env.items()),
        run_file=request.run_file,
        folder=request.folder,
        cluster=cluster_lines(request.cluster),
    )


def allocation(
    what: str, file: RunFile, table: SlurmTable | JobsTable, nodes: int, gpus: int | None, time: str
) -> dict[str, str | None]:
    """Return salloc's options for the job `RUN-what`. table: its partition and account; gpus: of each node."""
    kind = f"gpu:{file.slurm.gpu_type}" if file.slurm.gpu_type else "gpu"
    return {
        "job-name": f"{file.run.name}-{what}",
        "partition": table.partition,
        "account": table.account,
        "qos": table.qos,
        "constraint": table.constraint,
        "reservation": table.reservation if isinstance(table, SlurmTable) else None,
        "nodes": str(nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(file.slurm.cpus_per_task) if gpus and file.slurm.cpus_per_task else None,
        "gres": f"{kind}:{gpus}" if gpus else None,
        "time": time,
    }


def new_job(script: str, command: Sequence[str], options: Mapping[str, str | None], terminal: bool) -> list[str]:
    """Return the salloc command that allocates nodes and opens the shell on the first. None: omit the option."""
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return ["salloc", *given, "srun", "--overlap", *_step(script, command, terminal)]


def into_job(
    script: str, command: Sequence[str], job_id: int, node: str | None, gpus: int | None, terminal: bool
) -> list[str]:
    """Return the srun command that opens the shell in a running job; without GPUs unless some are requested."""
    where = [f"--nodelist={node}"] if node else []
    gres = f"gpu:{gpus}" if gpus else "none"
    return ["srun", f"--jobid={job_id}", "--overlap", f"--gres={gres}", *where, *_step(script, command, terminal)]


def _step(script: str, command: Sequence[str], terminal: bool) -> list[str]:
    one_task = ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mpi=none", "--export=ALL"]
    return [
        *one_task,
        *(["--pty"] if terminal else []),
        "bash",
        "-c",
        script,
        "opsctl-shell",
        *(command or INTERACTIVE),
    ]
