"""The process of one node that starts a training program, asks its ranks to save and leave, and leaves none behind.

It writes the records of an attempt's folder that our trainer's launcher writes: where each rank runs, the first rank to
fail and, on the first node, why the program left.

torchrun's ranks have sessions of their own and outlive a launcher that is killed, so this process is the subreaper of
all processes below it, and ends them one by one. A signal to one rank alone hangs a program: the first node's process
sees a request and sends the others the moment at which all signal their ranks.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

from opsctl.core.files.state_files import write_state
from opsctl.core.output import message, show
from opsctl.core.timestamps import now
from opsctl.jobs.runner.program_output import ProgramOutput
from opsctl.run.config.schema import HOOK
from opsctl.run.programs.hook import HOOK_FOLDER, SAVED, STOP_VARIABLE
from opsctl.run.programs.launchers import Place, to_start
from trainer.formats.attempt.attempt_records import (
    EXIT_REPORT,
    LEAVING_NOTE,
    ExitReport,
    Failure,
    LeavingNote,
    NodeClock,
    RankPlace,
    clock_file,
    failure_file,
    ranks_file,
)
from trainer.formats.attempt.error_file import SHELLS
from trainer.formats.logs.guard_lines import Reason, leave_line

#: The variable with a ProgramStep as JSON. Other users can see a command line, but no environment.
STEP_VARIABLE = "OPSCTL_PROGRAM_STEP"
#: The newest complete checkpoint, for programs that are told by a variable where to resume. Empty: from the start.
CHECKPOINT_VARIABLE = "OPSCTL_CHECKPOINT"
_PR_SET_CHILD_SUBREAPER = 36
#: In the attempt's folder; `opsctl_hook` of rank 0 looks for it.
_STOP_FILE = "hook-stop"
_POLL_S = 0.2
#: From the sight of a request to the signal, so that every node sends it at the same moment.
_AHEAD_S = 1.0
#: From the failure of a rank to the end of the other ranks, or from the end of all ranks after a stop signal to the end
#: of their launcher. And from SIGTERM to SIGKILL for what is left over.
_FOLLOW_S, _LEFTOVER_S = 5.0, 5.0
#: From the report of a complete last checkpoint to the end of the program.
_AFTER_SAVED_S = 20.0
#: Place of exit_code after the name in /proc/PID/stat, see proc(5).
_EXIT_CODE_FIELD = 49
#: How long the ranks are searched for again and again; a program may have fewer ranks than the node has GPUs.
_FIND_S, _FIND_RARELY_S = 120.0, 30.0


class ProgramStep(msgspec.Struct, frozen=True, kw_only=True):
    """A program's launch, the same for all nodes."""

    command: tuple[str, ...]
    folder: str  # where it is started
    launch: str  # one of schema.LAUNCHES
    nodes: int
    ranks_per_node: int
    master_address: str
    master_port: int
    stop_port: int  # of the first node's process
    token: str  # with which the first node's process proves itself
    stop: str | None  # the signal on which the program saves and leaves, or HOOK; None: it saves on no request
    saves: bool = True  # whether it can save then
    grace_s: int
    kill_switch: str
    stop_request: str
    output: str  # the run's output folder
    attempt_folder: str
    checkpoint: str = ""


@dataclass(frozen=True)
class Stop:
    """A request to save and leave."""

    reason: Reason
    signal_at: float  # seconds since the epoch


def main(environment: Mapping[str, str]) -> int:
    """Run the node's part of the step that STEP_VARIABLE describes. Returns its exit code."""
    step = msgspec.json.decode(environment[STEP_VARIABLE], type=ProgramStep)
    kept = {name: value for name, value in environment.items() if name != STEP_VARIABLE}
    node_rank = int(environment.get("SLURM_PROCID", "0"))
    name = environment.get("SLURMD_NODENAME") or socket.gethostname()
    return NodeRun(step, node_rank, name, kept).run()


@dataclass
class NodeRun:
    """One node's part of a program's run."""

    step: ProgramStep
    node_rank: int
    node: str
    environment: Mapping[str, str]
    _ranks: dict[int, psutil.Process] = field(default_factory=dict)  # by local rank
    _started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)  # by place in the list of starts
    _failure: Failure | None = None
    _failed_at: float = 0.0
    _stop: Stop | None = None
    _signalled_at: float = 0.0
    _ranks_left_at: float = 0.0  # after the signal
    _has_found: bool = False  # all ranks
    _find_at: float = 0.0  # when the ranks are to be searched for again
    _began_at: float = field(default_factory=time.monotonic)
    _saved_at: float = 0.0  # when the program reported that its last checkpoint is complete
    _is_told: bool = False  # Slurm or srun ends the step
    _inode: int | None = None  # of the attempt's folder

    def run(self) -> int:
        """Start the program and return when none of its processes is left."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # A warning signal of Slurm kills torchrun while its ranks train on. The program's processes inherit this.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        # srun's or Slurm's end of the step: ranks in sessions of their own would outlive this process.
        signal.signal(signal.SIGTERM, self._note_end)
        with contextlib.suppress(OSError):
            self._inode = Path(self.step.attempt_folder).stat().st_ino
        self._record(clock_file(self.node_rank), NodeClock(self.node, datetime.now().astimezone()))
        place = Place(
            nodes=self.step.nodes,
            node_rank=self.node_rank,
            ranks_per_node=self.step.ranks_per_node,
            master_address=self.step.master_address,
            master_port=self.step.master_port,
            run_id=Path(self.step.attempt_folder).name,
            grace_s=self.step.grace_s,
        )
        variables = {
            "PYTHONUNBUFFERED": "1",  # the lines of a killed rank are not lost, and progress is not late
            CHECKPOINT_VARIABLE: self.step.checkpoint,
            STOP_VARIABLE: str(self._stop_file),
        }
        output = ProgramOutput(sys.stdout.fileno())
        output.start()
        with contextlib.closing(_channel(self.step, self.node_rank)) as channel:
            for number, start in enumerate(to_start(self.step.command, self.step.launch, place)):
                own = {**variables, **self.environment, **start.environment}
                own["PYTHONPATH"] = os.pathsep.join(filter(None, (own.get("PYTHONPATH"), str(HOOK_FOLDER))))
                try:
                    self._started[number] = subprocess.Popen(
                        start.words,
                        env=own,
                        stdin=subprocess.DEVNULL,
                        stdout=output.end,
                        stderr=output.end,
                        cwd=self.step.folder,
                    )
                except OSError as error:
                    # As slurmstepd writes it, so that triage knows it.
                    message(f"{self.node}: error: execve(): {start.words[0]}: {error.strerror}")
                    self._end_all()
                    return 127
            while self._is_running():
                self._find_ranks()
                self._check_stop(channel)
                time.sleep(_POLL_S)
        self._end_all()
        output.close(_LEFTOVER_S)
        return self._close()

    @property
    def _stop_file(self) -> Path:
        return Path(self.step.attempt_folder) / _STOP_FILE

    def _note_end(self, *_: object) -> None:
        self._is_told = True

    def _is_running(self) -> bool:
        """Reap, and return True while a started process is left and no limit has passed."""
        self._reap()
        if self._is_told:
            return False
        codes = {number: process.returncode for number, process in self._started.items()}
        for number, code in codes.items():
            if code and self._stop is None and self._failure is None:
                self._fail(number if self.step.launch == "ranks" else None, code)
        late = self._failed_at and self.step.launch == "ranks" and time.monotonic() - self._failed_at > _FOLLOW_S
        overdue = self._signalled_at and time.monotonic() - self._signalled_at > self.step.grace_s
        if self._signalled_at and not self._saved_at and Path(f"{self._stop_file}{SAVED}").exists():
            self._saved_at = time.monotonic()
        saved = self._saved_at and time.monotonic() - self._saved_at > _AFTER_SAVED_S
        if overdue and not saved and self.step.stop is not None:
            message(f"opsctl: {self.node}: the program has not left within {self.step.grace_s} s: ending it")
        is_over = late or overdue or saved or self._is_left_waiting()
        return not is_over and any(code is None for code in codes.values())

    def _is_left_waiting(self) -> bool:
        """Return True if the ranks have left after the signal, and their launcher has not.

        torchrun waits minutes for the launchers of other nodes, and one of them may have failed.
        """
        if not self._signalled_at or not self._ranks or ranks_below(psutil.Process()):
            self._ranks_left_at = 0.0
            return False
        self._ranks_left_at = self._ranks_left_at or time.monotonic()
        return time.monotonic() - self._ranks_left_at > _FOLLOW_S

    def _reap(self) -> None:
        """Reap the started processes that have ended, and orphans that have become this one's children."""
        started = {process.pid: process for process in self._started.values()}
        with contextlib.suppress(ChildProcessError):  # no child is left
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in started:
                    started[ended.si_pid].poll()
                else:
                    os.waitpid(ended.si_pid, 0)

    def _fail(self, local_rank: int | None, code: int) -> None:
        self._failed_at = time.monotonic()
        if local_rank is None:  # a launcher: the rank that failed first was seen by `_watch_ranks`, or triage finds it
            return
        self._failure = Failure(
            rank=self._rank(local_rank),
            node=self.node,
            local_rank=local_rank,
            exit_code=code if code > 0 else None,
            signal=-code if code < 0 else None,
            failed_at=datetime.now(UTC),
        )
        self._record(failure_file(self.node_rank), self._failure)

    def _find_ranks(self) -> None:
        """Find the ranks below this process, and record their places once all are there.

        A program may have fewer ranks than the node has GPUs: after a while, those that are there are all.
        """
        at = time.monotonic()
        if self._has_found or at < self._find_at:
            return
        is_late = at - self._began_at > _FIND_S
        self._find_at = at + (_FIND_RARELY_S if is_late else 0.0)
        self._ranks = ranks_below(psutil.Process())
        self._has_found = len(self._ranks) == self.step.ranks_per_node or (is_late and bool(self._ranks))
        if self._has_found:
            places = [
                RankPlace(rank=self._rank(local_rank), node=self.node, local_rank=local_rank, pid=process.pid)
                for local_rank, process in sorted(self._ranks.items())
            ]
            self._record(ranks_file(self.node_rank), places)
            if self.step.launch != "ranks":
                threading.Thread(target=self._watch_ranks, daemon=True).start()

    def _rank(self, local_rank: int) -> int:
        with contextlib.suppress(KeyError, ValueError, psutil.Error):
            return int(self._ranks[local_rank].environ()["RANK"])
        return self.node_rank * self.step.ranks_per_node + local_rank

    def _watch_ranks(self) -> None:
        """Record the first rank below a launcher that ends badly. Its launcher reaps it about 0.1 s later."""
        poll, ranks = select.poll(), {}
        for local_rank, process in self._ranks.items():
            with contextlib.suppress(OSError):
                ranks[os.pidfd_open(process.pid)] = local_rank
        for opened in ranks:
            poll.register(opened, select.POLLIN)
        while ranks and self._failure is None:
            for opened, _ in poll.poll():
                poll.unregister(opened)
                local_rank = ranks.pop(opened)
                os.close(opened)
                code = _exit_code(self._ranks[local_rank].pid)
                if code and self._stop is None and self._failure is None:
                    self._fail(local_rank, code)

    def _check_stop(self, channel: FirstNode | OtherNode) -> None:
        if self._stop is None:
            self._stop = channel.stop()
            if self._stop is not None and self.node_rank == 0:
                self._report_leaving(self._stop)
        if self._stop is None or self._signalled_at or time.time() < self._stop.signal_at:
            return
        self._signalled_at = time.monotonic()
        if self.step.stop is None:  # nothing to wait for
            self._signalled_at -= self.step.grace_s
            return
        if self.node_rank == 0:  # rank 0 looks for it
            self._record(_STOP_FILE, self._stop.reason)
        if self.step.stop == HOOK:
            return
        for process in ranks_below(psutil.Process()).values():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.Signals[self.step.stop])

    def _report_leaving(self, stop: Stop) -> None:
        detail = self.step.kill_switch if stop.reason is Reason.KILL_SWITCH else self.step.stop_request
        show(leave_line(stop.reason, detail))
        self._record(LEAVING_NOTE, LeavingNote(reason=stop.reason, at=now(), saves=self.step.saves))

    def _end_all(self) -> None:
        """End every process below this one: SIGTERM, then SIGKILL until none is left."""
        deadline = time.monotonic() + _LEFTOVER_S
        number = signal.SIGKILL if self._signalled_at else signal.SIGTERM
        while below := [one for one in psutil.Process().children(recursive=True) if not _is_gone(one)]:
            if time.monotonic() > deadline:
                number = signal.SIGKILL
            for process in below:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(number)
            time.sleep(_POLL_S)
            self._reap()
            if time.monotonic() > deadline + 2 * _LEFTOVER_S:  # a process in an uninterruptible call: Slurm's to end
                message(f"opsctl: {self.node}: {len(below)} processes of the program do not end")
                return

    def _close(self) -> int:
        """Record why the program left, and return the exit code."""
        if self._stop is not None:
            if self.node_rank == 0:
                self._record(EXIT_REPORT, ExitReport(reason=self._stop.reason))
            return 0  # programs that saved well exit with 1, and some that lost their work with 0
        if self._is_told:
            return 128 + signal.SIGTERM
        codes = [process.returncode for process in self._started.values()]
        if self._failure is not None:
            return self._failure.exit_code or 128 + (self._failure.signal or 1)
        return next((code if code > 0 else 128 - code for code in codes if code), 0)

    def _record(self, name: str, value: object) -> None:
        """Write a record of the attempt, not of a later one in the job, whose folder has the same name.

        A disk that does not take it does not end the program.
        """
        folder = Path(self.step.attempt_folder)
        with contextlib.suppress(OSError):
            if self._inode in (None, folder.stat().st_ino):
                write_state(Path(self.step.output), folder / name, value)


def ranks_below(process: psutil.Process) -> dict[int, psutil.Process]:
    """Return the rank processes below `process` by local rank: the topmost with a RANK variable that is no shell."""
    found: dict[int, psutil.Process] = {}
    for one in process.children(recursive=True):  # parents come first
        try:
            local_rank = one.environ().get("LOCAL_RANK", "") if "RANK" in one.environ() else ""
            if local_rank.isdecimal() and one.name() not in SHELLS:
                found.setdefault(int(local_rank), one)
        except psutil.Error:
            continue
    return found


def _exit_code(pid: int) -> int | None:
    """Return the exit code of a process that was not reaped yet, negative for a signal; None if it was."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE_FIELD]))
    except (OSError, ValueError, IndexError):
        return None


def _is_gone(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return True


def _channel(step: ProgramStep, node_rank: int) -> FirstNode | OtherNode:
    return FirstNode(step) if node_rank == 0 else OtherNode(step)


class FirstNode:
    """The first node's end: it sees requests in files, and sends them to the other nodes."""

    def __init__(self, step: ProgramStep) -> None:
        self._step = step
        self._others: list[socket.socket] = []
        self._listener: socket.socket | None = None
        if step.nodes > 1:
            self._listener = socket.create_server(("", step.stop_port), backlog=step.nodes)
            self._listener.setblocking(False)

    def stop(self) -> Stop | None:
        """Return a request, after sending it to all nodes; None while there is none."""
        while self._listener is not None and select.select([self._listener], [], [], 0)[0]:
            self._others.append(self._listener.accept()[0])
        reason = next((reason for path, reason in self._files() if os.path.lexists(path)), None)
        if reason is None:
            return None
        stop = Stop(reason, time.time() + _AHEAD_S)
        for other in self._others:
            with contextlib.suppress(OSError):
                other.sendall(f"{self._step.token} {stop.reason} {stop.signal_at}\n".encode())
        return stop

    def _files(self) -> Iterator[tuple[str, Reason]]:
        yield self._step.kill_switch, Reason.KILL_SWITCH
        yield self._step.stop_request, Reason.STOP_REQUEST

    def close(self) -> None:
        """Close all connections."""
        for one in (*self._others, *filter(None, [self._listener])):
            one.close()


class OtherNode:
    """Another node's end: it connects to the first node's, and receives requests."""

    def __init__(self, step: ProgramStep) -> None:
        self._step = step
        self._socket: socket.socket | None = None
        self._received = b""

    def stop(self) -> Stop | None:
        """Return a request that was received; None while there is none."""
        if self._socket is None:
            with contextlib.suppress(OSError):  # the first node is not there yet
                self._socket = socket.create_connection((self._step.master_address, self._step.stop_port), timeout=1)
            return None
        if not select.select([self._socket], [], [], 0)[0]:
            return None
        try:
            data = self._socket.recv(4096)
        except OSError:
            data = b""
        if not data:  # the first node has ended, and Slurm ends this one
            self.close()
            return None
        self._received += data
        for line in self._received.split(b"\n")[:-1]:
            token, _, rest = line.decode(errors="replace").partition(" ")
            if hmac.compare_digest(token.encode(), self._step.token.encode()):
                reason, _, at = rest.partition(" ")
                return Stop(Reason(reason), float(at))
        return None

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


if __name__ == "__main__":
    sys.exit(main(os.environ))
