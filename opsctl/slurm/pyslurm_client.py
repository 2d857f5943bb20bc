"""The backend over pyslurm: who looks asks a program that holds a connection to libslurm, commands do the rest.

pyslurm's submit knows fewer options than sbatch's directives, its cancel and hold no tasks of an array, and accounting
is sacct's: those stay Slurm's commands. The program is a process of its own, see `pyslurm_program`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Any

from opsctl.core.errors import SlurmError, SlurmUnasked
from opsctl.core.timestamps import now
from opsctl.slurm import pyslurm_rows
from opsctl.slurm.client import Deadline
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.commands import CommandClient
from opsctl.slurm.nodes import Node, expand_nodes
from opsctl.slurm.process import Answer, judged, refused, run_slurm, unreachable
from opsctl.slurm.types import Job, JobEnd

_ASKED = "pyslurm"
#: Of the words that libslurm leaves when it ends its process.
_MOST_WORDS = 8192


class PyslurmClient(CommandClient):
    """See SlurmClient. Raises SlurmUnasked where pyslurm is missing or of another release than this Slurm."""

    def __init__(self, cluster: Cluster, deadline: Deadline | None) -> None:
        super().__init__(cluster, deadline)
        self._program: Program | None = None

    def jobs(self, users: Iterable[str] | None = None, job_ids: Iterable[int] | None = None) -> list[Job]:
        """Of all jobs, those that are asked for. Empty `users` or `job_ids` are no question, and nobody is asked."""
        names = None if users is None else set(users)
        ids = None if job_ids is None else set(job_ids)
        if names == set() or ids == set():
            return []
        found = pyslurm_rows.jobs_in_queue(self._rows("jobs", pyslurm_rows.JOB_FIELDS))
        return [
            job
            for job in found
            if (names is None or job.user in names) and (ids is None or {job.job_id, job.array_job_id} & ids)
        ]

    def nodes(self, folded: str | None = None) -> list[Node]:
        """A name that Slurm does not have is left out."""
        wanted = None if folded is None else set(expand_nodes(folded))
        partitions = self._rows("partitions", pyslurm_rows.PARTITION_FIELDS)
        found = pyslurm_rows.nodes_of(self._rows("nodes", pyslurm_rows.NODE_FIELDS), partitions)
        return [node for node in found if wanted is None or node.name in wanted]

    def node_address(self, node: str) -> str:
        """Raises SlurmError for a node that Slurm does not have."""
        for name, *_, address in self._rows("nodes", pyslurm_rows.NODE_FIELDS):
            if name == node and address:
                return str(address)
        raise SlurmError(f"Slurm refused to show node {node}: Node {node} not found")

    def _ends_in_memory(self, job_ids: Sequence[int]) -> dict[int, JobEnd]:
        return pyslurm_rows.ends_of(self._rows("jobs", pyslurm_rows.JOB_FIELDS), job_ids, now()) if job_ids else {}

    def _rows(self, what: str, fields: Sequence[str]) -> list[list[Any]]:
        self._refuse_what_is_out_of_bounds()
        return self._patiently(lambda time_s: self._asked(what, fields, time_s))

    def _asked(self, what: str, fields: Sequence[str], time_s: float) -> list[list[Any]]:
        deadline = Deadline(time_s)
        if self._program is None or not self._program.is_alive:
            self._refuse_what_would_end_it(deadline)
            self._program = Program(self.environment)
        return self._program.rows(what, fields, deadline)

    def _refuse_what_would_end_it(self, deadline: Deadline) -> None:
        conf = self.environment.get("SLURM_CONF")
        if conf and not os.path.exists(conf):  # noqa: PTH110 - one that cannot be looked at is not there either
            raise SlurmUnasked(f"no Slurm is set up by SLURM_CONF={conf}: there is no such file")
        try:
            own = metadata.version("pyslurm")
        except metadata.PackageNotFoundError:
            raise SlurmUnasked(
                "the backend pyslurm is not installed in this Python: pip install pyslurm of Slurm's own release, "
                "or leave [cluster] backend and OPSCTL_SLURM_BACKEND out"
            ) from None
        answer = run_slurm(["squeue", "--version"], self.environment, deadline.remaining_s())
        if answer.code != 0:
            raise refused(answer, "tell its release")
        slurms = answer.stdout.split()[-1:] or ["?"]
        if own.split(".")[:2] != slurms[0].split(".")[:2]:
            raise SlurmUnasked(
                f"the backend pyslurm is {own}, made for Slurm {'.'.join(own.split('.')[:2])}, and this is Slurm "
                f'{slurms[0]}: pip install the pyslurm of that release, or choose [cluster] backend = "commands"'
            )


class Program:
    """One `pyslurm_program`, ended with its last user or when it is late."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the program
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "opsctl.slurm.pyslurm_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env={**environment, "PYTHONPATH": _own_folder()},
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end, self._child)
        self._read = b""
        self._release: str | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._end.alive and self._child.poll() is None

    def rows(self, what: str, fields: Sequence[str], deadline: Deadline) -> list[list[Any]]:
        """The values of all jobs, nodes or partitions. Raises as SlurmLooks says; what is late is ended."""
        try:
            if self._release is None:
                self._release = str(self._answer(deadline).get("release"))
            self._tell({"ask": what, "fields": fields})
            return list(self._answer(deadline)["rows"])
        except BaseException:
            self._end()
            raise

    def _tell(self, question: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what it says instead is read
            self._child.stdin.write(json.dumps(question).encode() + b"\n")
            self._child.stdin.flush()

    def _answer(self, deadline: Deadline) -> dict[str, Any]:
        line = self._line(deadline)
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            said = judged(Answer(1, "", str(answer["error"])), _ASKED)
            raise SlurmError(f"Slurm refused to answer pyslurm: {said.words()}")
        return answer

    def _line(self, deadline: Deadline) -> bytes:
        """What it says next; empty where it has ended."""
        assert self._child.stdout is not None
        descriptor = self._child.stdout.fileno()
        # Each piece is looked at and copied once: of 100,000 jobs there are tens of megabytes.
        pieces, piece = [], self._read
        while b"\n" not in piece:
            pieces.append(piece)
            ready, _, _ = select.select([descriptor], [], [], deadline.remaining_s())
            if not ready:
                raise unreachable(_ASKED, f"no answer within {deadline.seconds:.0f} s")
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                return b""
        end, _, self._read = piece.partition(b"\n")
        return b"".join([*pieces, end])

    def _last_words(self) -> str:
        self._words.seek(0)
        said = self._words.read(_MOST_WORDS).decode(errors="replace").strip()
        return said or "it ended without a word"


def _own_folder() -> str:
    """Where this package is, for a Python that is started elsewhere and without our settings."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


def _end(child: subprocess.Popen[bytes]) -> None:
    """It ends with its input; what does not is killed."""
    for pipe in (child.stdin, child.stdout):
        with contextlib.suppress(OSError):
            if pipe is not None:
                pipe.close()
    with contextlib.suppress(ProcessLookupError):
        child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(timeout=2)
