"""Running one of Slurm's commands: clean environment, a time-out that kills it, and its failures sorted into ours."""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import SlurmError, SlurmMissing, SlurmUnasked, SlurmUnreachable
from opsctl.core.process import Overdue, find_program, run_program
from opsctl.slurm.cluster import CLUSTER_FILE

#: Parts of Slurm's messages when the controller, its database or munge does not answer; anything else is an answer.
_UNREACHABLE = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection timed out",
    "connect failure",
    "zero bytes were transmitted",
    "transport endpoint is not connected",
    "insane message length",
    "munge encode failed",
    "protocol authentication error",
    "failed to fetch config",
    "controller is in standby",
    "slurm_persist_conn_open",
    "unable to connect to database",
    "error talking to the database",
    "slurm temporarily unable to accept job",
    "resource temporarily unavailable",
    "unable to process configuration file",
)
_NO_CONFIGURATION = "could not establish a configuration source"
#: sbatch hands its umask to the job, whose files the group, and no other user, has to read and write.
_UMASK = 0o007
#: Commands that ask slurmctld first.
_OF_THE_CONTROLLER = ("squeue", "sinfo", "sbatch", "scancel", "scontrol", "srun")


@dataclass(frozen=True)
class Answer:
    """The answer of a command. Text is decoded with replacement, because job names may contain any bytes."""

    code: int
    stdout: str
    stderr: str

    def words(self) -> str:
        """Its messages as one line, without the program's name and repetitions."""
        lines: list[str] = []
        for raw in (self.stderr or self.stdout).splitlines():
            line = raw.strip()
            for _ in range(2):
                head, colon, rest = line.partition(": ")
                if colon and (head.isidentifier() or head in ("error", "fatal")):
                    line = rest.strip()
            if line and line not in lines:
                lines.append(line)
        return "; ".join(lines) or f"exit code {self.code} without a message"

    @property
    def is_unreachable(self) -> bool:
        """Return whether it failed because no controller or database answered, by its text; a refusal is an answer."""
        text = (self.stderr + self.stdout).lower()
        return self.code != 0 and any(part in text for part in _UNREACHABLE)


def run_slurm(
    command: Sequence[str],
    environment: dict[str, str],
    timeout_s: float,
    stdin: str | None = None,
    take: Callable[[bytes], None] | None = None,
) -> Answer:
    """Run `command`, with `timeout_s` seconds at most; it and what it started are killed then.

    take: is handed what it prints as it comes, which is not in the Answer then. Raises SlurmMissing when it is not
    installed, SlurmUnreachable when no answer came. Any other failure is in the Answer's code.
    """
    path = find_program(command[0], environment)
    if path is None:
        raise SlurmMissing(
            f"{command[0]} is not on PATH: log in to a login node of the cluster, or load its Slurm module. For "
            "a Slurm on this machine: opsctl local-cluster up. plan, logs, attempts and kill-switch work without it"
        )
    conf = environment.get("SLURM_CONF")
    asked = command[0] + (f" with SLURM_CONF={conf}" if conf else "")
    if timeout_s <= 0:
        raise unreachable(asked, "no time left to ask it", conf)
    if (gone := _stopped_controller(command[0], conf)) is not None:
        raise unreachable(asked, gone, conf)
    handed = None if stdin is None else stdin.encode()
    try:
        ended = run_program([path, *command[1:]], environment, timeout_s, handed, umask=_UMASK, take=take)
    except Overdue:
        raise unreachable(asked, f"no answer within {timeout_s:.0f} s", conf) from None
    out, err = ended.out.decode(errors="replace"), ended.err.decode(errors="replace")
    return judged(Answer(ended.code, out, err), asked, conf)


def _remedy(slurm_conf: str | None) -> str:
    """Return what to do if the Slurm that this file configures does not answer. A local cluster is the caller's own."""
    folder = local_folder(slurm_conf)
    local = f"a local cluster that is down: opsctl local-cluster up --folder {shlex.quote(str(folder))}; else "
    return f"{local if folder is not None else ''}try again later"


def judged(answer: Answer, asked: str, slurm_conf: str | None = None) -> Answer:
    """Return `answer`. Raises SlurmUnasked or SlurmUnreachable if its words say that Slurm did not answer."""
    if answer.code != 0 and _NO_CONFIGURATION in answer.stderr.lower():
        raise SlurmUnasked(
            "no Slurm is set up on this machine (no slurm.conf), so the state of jobs is unknown: "
            "name a cluster with --cluster or SLURM_CONF, or have one here: opsctl local-cluster up, then "
            "opsctl local-cluster exec --name NAME -- and the command"
        )
    if answer.is_unreachable:
        raise unreachable(asked, answer.words(), slurm_conf)
    return answer


def unreachable(program: str, why: str, slurm_conf: str | None = None) -> SlurmUnreachable:
    """Says who was asked, that nothing is known, what to do, and what still works."""
    return SlurmUnreachable(
        f"Slurm does not answer ({program}: {why}): the state of its jobs is unknown; {_remedy(slurm_conf)} "
        "(plan, logs, attempts and kill-switch work meanwhile)"
    )


def refused(answer: Answer, what: str) -> SlurmError:
    """Slurm's refusal in its own words."""
    return SlurmError(f"Slurm refused to {what}: {answer.words()}")


def local_folder(slurm_conf: str | None) -> Path | None:
    """Return the folder of the local cluster that this file configures; None for another Slurm."""
    folder = Path(slurm_conf).parent if slurm_conf else None
    # No Path.is_file: what cannot be looked at (another's folder, a file server that is away) is an OSError to it.
    return folder if folder is not None and os.path.isfile(folder / CLUSTER_FILE) else None  # noqa: PTH113


def _stopped_controller(program: str, slurm_conf: str | None) -> str | None:
    """Return that the controller of a local cluster does not listen on its port; None if it may answer.

    Slurm's commands would try for as long as they may.
    """
    if program not in _OF_THE_CONTROLLER or slurm_conf is None or local_folder(slurm_conf) is None:
        return None
    try:
        port = re.search(r"^SlurmctldPort=(\d+)$", Path(slurm_conf).read_text(encoding="utf-8"), re.MULTILINE)
        if port is not None:
            socket.create_connection(("127.0.0.1", int(port[1])), timeout=1.0).close()
    except ConnectionRefusedError:
        return f"its slurmctld does not listen: port {port[1] if port else '?'} of this machine refuses"
    except (OSError, OverflowError, UnicodeDecodeError):
        pass
    return None
