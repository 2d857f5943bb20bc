"""Run `trainer.launcher.probing` on nodes of an allocation and collect its answers within a time limit."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from opsctl.core.errors import OpsctlError
from opsctl.core.process import find_program
from trainer.formats.attempt.node_samples import BEGAN, DONE, ENDED, FAILED, LATE, PROGRAM, STEP_END_S, ProbeLine
from trainer.formats.tolerant import decode


@dataclass
class Answer:
    """The answer of one node."""

    node: str
    #: (part, what) -> number by GPU or link
    numbers: dict[tuple[str, str], dict[int | None, float]] = field(default_factory=dict)
    texts: dict[tuple[str, str], str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)  # parts
    failed: dict[str, str] = field(default_factory=dict)  # part -> why
    lost: str = ""  # the reason why it stopped answering
    late: dict[str, str] = field(default_factory=dict)  # part -> message of its timeout; PROGRAM: of the whole node
    begun: list[str] = field(default_factory=list)

    def number(self, part: str, what: str) -> float | None:
        """Return the one number of a measure that is neither of a GPU nor of a link."""
        return self.numbers.get((part, what), {}).get(None)

    @property
    def is_silent(self) -> bool:
        """Return True if it reported nothing at all, not even that a part has begun."""
        return not (self.numbers or self.texts or self.ended or self.failed or self.late.keys() - {PROGRAM})

    def add(self, line: ProbeLine) -> None:
        """Add one line of the node."""
        if line.what == BEGAN:
            self.begun.append(line.part)
        elif line.what == ENDED:
            self.ended.add(line.part)
        elif line.what == FAILED:
            self.failed.setdefault(line.part, line.text)
        elif line.what == LATE:
            self.late.setdefault(line.part, line.text)
        elif line.what != DONE and line.number is None:
            self.texts[line.part, line.what] = line.text
        elif line.what != DONE and line.number is not None:
            values = self.numbers.setdefault((line.part, line.what), {})
            # Each GPU's process reports its own number of a link: the slowest is what a training waits for.
            worse = max if line.what.endswith(("_us", "_wrong", "_ms")) else min
            values[line.of] = worse(values.get(line.of, line.number), line.number)

    def close(self, lost: str, late: str) -> None:
        """Close parts that began without an end: as late if the node is late, else as failed."""
        open_parts = [part for part in self.begun if part not in {*self.ended, *self.failed, *self.late}]
        self.lost = lost
        if late and not lost:
            self.late |= {**dict.fromkeys(open_parts, late), PROGRAM: late}
        else:
            self.failed |= dict.fromkeys(open_parts, lost or "it began but did not end")


def sorted_answers(
    nodes: Sequence[str], lines: Iterable[ProbeLine], lost: Mapping[str, str], late: Mapping[str, str] | None = None
) -> list[Answer]:
    """Return one answer for each of `nodes`, in their order.

    lost: node -> why it stopped answering. late: node -> message of its timeout.
    """
    found = {node: Answer(node) for node in nodes}
    for line in lines:
        if line.node in found:
            found[line.node].add(line)
    for node, answer in found.items():
        answer.close(lost.get(node, ""), (late or {}).get(node, ""))
    return list(found.values())


_POLL_S = 0.2
_CHUNK_BYTES = 64 * 1024
_NODE_FAILED = re.compile(r"^srun: error: Node failure on (?P<node>\S+)")
_TASK_ENDED = re.compile(r"^srun: error: (?P<node>\S+): tasks? \S+: (?P<how>.+)$")
#: Once half of the nodes have finished, the others get the same time again plus these seconds.
_LATE_S = 15.0
_LONGEST_LINE = 1 << 16


@dataclass
class Heard:
    """The output of one pass."""

    lines: list[ProbeLine] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)  # node -> why it stopped answering, according to Slurm
    late: dict[str, str] = field(default_factory=dict)  # node -> message of its timeout
    words: list[str] = field(default_factory=list)  # the last lines of other output
    cut_short: bool = False  # the job has to leave


def srun_line(nodes: Sequence[str], program: Sequence[str]) -> list[str]:
    """Return the srun command for one task on each node, in Slurm's order. A failing node ends no other task."""
    return [
        "srun",
        "--overlap",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(nodes)}",
        "--distribution=block",
        "--kill-on-bad-exit=0",
        "--no-kill",
        "--wait=0",
        "--mpi=none",
        "--export=ALL",
        *program,
    ]


def ask(
    command: Sequence[str],
    environment: Mapping[str, str],
    nodes: Sequence[str],
    limit_s: float,
    is_to_end: Callable[[], bool] = lambda: False,
) -> Heard:
    """Run an srun command until each node has answered, is lost or late. Raises OpsctlError if it cannot start."""
    path = find_program(command[0], environment)
    if path is None:
        raise OpsctlError(f"{command[0]} is not on PATH: a probe needs Slurm's commands")
    try:
        srun = subprocess.Popen(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    except OSError as error:
        raise OpsctlError(f"{command[0]} cannot be started: {error.strerror}") from None
    listener = _Listener(set(nodes))
    try:
        listener.listen(srun, limit_s, is_to_end)
    finally:
        _end(srun, is_through=not listener.missing and not listener.heard.cut_short)
    for node in listener.missing:
        listener.heard.late[node] = f"it did not finish within {limit_s:.0f} s"
    return listener.heard


class _Listener:
    def __init__(self, nodes: set[str]) -> None:
        self.heard = Heard()
        self.nodes, self.missing = nodes, set(nodes)
        self._rest = b""

    def listen(self, srun: subprocess.Popen[bytes], limit_s: float, is_to_end: Callable[[], bool]) -> None:
        assert srun.stdout is not None
        began = time.monotonic()
        deadline, half_at = began + limit_s, 0.0
        while self.missing and time.monotonic() < deadline:
            ready, _, _ = select.select([srun.stdout], [], [], _POLL_S)
            if ready:
                data = os.read(srun.stdout.fileno(), _CHUNK_BYTES)
                if not data:
                    break
                self._take(data)
            if not half_at and 2 * len(self.missing) <= len(self.nodes):
                half_at = time.monotonic()
                deadline = min(deadline, half_at + (half_at - began) + _LATE_S)
            if is_to_end():
                self.heard.cut_short = True
                break
        for node in self.missing & self.heard.lost.keys():
            self.missing.discard(node)

    def _take(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-_LONGEST_LINE:]
        for line in lines:
            self._take_line(line)

    def _take_line(self, data: bytes) -> None:
        line = decode(data, ProbeLine) if data.startswith(b"{") else None
        if line is not None:
            self.heard.lines.append(line)
            if line.what == DONE:
                self.missing.discard(line.node)
            return
        text = data.decode(errors="replace").strip()
        if failed := _NODE_FAILED.match(text):
            self._lose(failed["node"], "Slurm lost it during the test")
        elif ended := _TASK_ENDED.match(text):
            self._lose(ended["node"], f"its program ended: {ended['how']}")
        if text:
            self.heard.words = [*self.heard.words[-20:], text]

    def _lose(self, node: str, why: str) -> None:
        if node in self.missing:
            self.missing.discard(node)
            self.heard.lost.setdefault(node, why)


def _end(srun: subprocess.Popen[bytes], is_through: bool) -> None:
    """End srun, which ends its tasks; leave a process that does not end to Slurm."""
    for number in (None, signal.SIGTERM, signal.SIGKILL) if is_through else (signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(srun.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            srun.wait(timeout=STEP_END_S / 2)
            break
    if srun.stdout is not None:
        srun.stdout.close()
