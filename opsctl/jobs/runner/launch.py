"""The launch of a step: the srun command, the Python on the nodes, and the rendezvous address and port.

On a cluster a node's name resolves. On a local cluster it does not, and all nodes share one address, so the port is
computed from the job's id.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.tcp_ports import is_free
from trainer.formats.checkpoint.history import ATTEMPT_FOLDER_VARIABLE, REVISION_VARIABLE

#: srun ends the rest when one launcher has left for this long.
WAIT_S = 60
#: Other users can see command lines, in the process list or Slurm's records; only the owner sees an environment.
_STEP_SCRIPT = "OPSCTL_STEP_SCRIPT"
_RUN_STEP_SCRIPT = f'script=${_STEP_SCRIPT}; unset {_STEP_SCRIPT}; eval "$script"'
#: Below the range that kernels hand out to outgoing connections (32768 on), above well-known services.
FIRST_PORT = 12_000
PORTS = 18_000
#: Distance between the first choices of neighbouring job ids: two jobs on one host do not probe the same ports.
_STRIDE = 13


@dataclass(frozen=True)
class Launch:
    """One launcher per node, with what they need to meet."""

    step_script: str  # its text, not a path: what was read and judged is what runs, whatever lies there by then
    python: Sequence[str]  # the interpreter's command on the nodes
    nodes: int
    cpus_per_task: int | None
    attempt_folder: Path
    words: Sequence[str]  # of each node's process, after the interpreter
    variables: Mapping[str, str]  # of each node's process
    revision: int | None = None  # its number, for the checkpoints' word of who saved them
    wait_s: int = WAIT_S  # 0: srun waits without limit for the others when one launcher has left
    only_on: Sequence[str] = ()  # names of those nodes; empty: they are all that the job has

    def command(self) -> list[str]:
        """Return the srun command. All its options are explicit, so SRUN_ and SLURM_ variables change none."""
        cpus = [f"--cpus-per-task={self.cpus_per_task}"] if self.cpus_per_task else []
        return [
            "srun",
            f"--nodes={self.nodes}",
            f"--ntasks={self.nodes}",
            "--ntasks-per-node=1",
            # What a step that lost a node still holds of the others is not waited for.
            *(["--overlap", f"--nodelist={','.join(self.only_on)}"] if self.only_on else []),
            *cpus,
            "--distribution=block",  # a node's place in Slurm's list is its launcher's rank
            "--kill-on-bad-exit=1",
            f"--wait={self.wait_s}",
            "--mpi=none",
            "--export=ALL",
            "/bin/bash",
            "-c",
            _RUN_STEP_SCRIPT,
            "step.sh",
            *self.python,
            "-u",
            *self.words,
        ]

    def environment(self) -> dict[str, str]:
        """Return the variables that the command needs in addition to those of the job."""
        return {_STEP_SCRIPT: self.step_script, **self.variables_of_attempt()}

    def variables_of_attempt(self) -> dict[str, str]:
        """Return those of them that each node's process has."""
        revision = {} if self.revision is None else {REVISION_VARIABLE: str(self.revision)}
        return {ATTEMPT_FOLDER_VARIABLE: str(self.attempt_folder), **revision, **self.variables}


def trainer_words(
    nodes: int, ranks_per_node: int, address: str, port: int, attempt_folder: Path, arguments: Sequence[str]
) -> list[str]:
    """Return the words of our trainer's launcher on each node."""
    return [
        "-m",
        "trainer.launch",
        "--nnodes",
        str(nodes),
        "--nproc-per-node",
        str(ranks_per_node),
        "--master-addr",
        address,
        "--master-port",
        str(port),
        "--attempt-folder",
        str(attempt_folder),
        "--",
        *arguments,
    ]


def launchers_python(environment: str | None) -> tuple[str, ...]:
    """Return the interpreter on the nodes: `python` of the environment script, without a script the one that runs
    opsctl.

    It never imports modules of the working folder, which users other than the job's owner may write.
    """
    return ("python" if environment else sys.executable, "-P")


def resolves(name: str) -> bool:
    """Return whether `name` has an address here."""
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return False
    return True


def master_address(
    first_node: str, node_address: Callable[[str], str], resolves: Callable[[str], bool] = resolves
) -> str:
    """Return the first node's name if names resolve, else the address at which Slurm reaches it."""
    return first_node if resolves(first_node) else node_address(first_node)


def free_port(job_id: int, is_free: Callable[[int], bool] = is_free, tries: int = 200) -> int:
    """Return the first free port on this host, from one computed from the job's id. Raises OpsctlError after
    `tries`.
    """
    for step in range(tries):
        port = FIRST_PORT + (job_id * _STRIDE + step) % PORTS
        if is_free(port):
            return port
    raise OpsctlError(f"no free port among {tries} from {FIRST_PORT + job_id * _STRIDE % PORTS} on for the rendezvous")
