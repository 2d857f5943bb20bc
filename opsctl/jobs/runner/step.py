"""The job step: one launcher per node through srun, its output copied to the training log until it ends."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.jobs.runner.cron_watch import CronWatch
from opsctl.jobs.runner.hang_watch import HangWatch
from opsctl.jobs.runner.main_log import FLUSH_S, MainLog
from opsctl.jobs.runner.own_lease import LeaseHeartbeat
from opsctl.jobs.runner.task import request_stop
from opsctl.jobs.runner.watch_thread import Watch
from opsctl.jobs.signals import Signals
from opsctl.run.attempts.outcome import LauncherExit
from opsctl.run.programs.progress import Translator
from trainer.formats.logs.guard_lines import EARLY_MARKS

if TYPE_CHECKING:
    from opsctl.jobs.runner.requests import RequestHandler

#: What is left of a step this long after the trainer said that it leaves is ended hard.
LEAVE_S = 60.0
#: Given to srun to go after that, before it is killed; Slurm clears the job away when the batch process ends.
SRUN_END_S = 15.0
#: After the first launcher has failed, the others get this long to record their failures. The step is then killed:
#: Slurm itself waits for KillWait, 30 s by default, and without the failed ranks the others can save nothing.
FOLLOW_S = 2.0
_ENDED_STEP = re.compile(rb"(?:StepId=|\*\*\* STEP )(\d+\.\d+)")
_LOST_NODE = re.compile(rb"^srun: error: Node failure on (\S+)", re.MULTILINE)
_TASK_EXIT = re.compile(rb"^srun: error: (\S+): tasks? \S+: Exited with exit code (\d+)\s*\n", re.MULTILINE)
#: What is kept of one chunk to find words that the next one ends.
_OVERLAP_BYTES = 512
_CHUNK_BYTES = 64 * 1024


class Step:
    """A running srun and what is watched while it runs."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: MainLog,
        signals: Signals,
        root: Path,
        stop_request: Path,
        has_left: Callable[[], bool],
        heartbeat: LeaseHeartbeat | None = None,
        why_signalled: Callable[[], str] | None = None,
        handler: RequestHandler | None = None,
        leave_s: float = LEAVE_S,
        cron: CronWatch | None = None,
        hangs: HangWatch | None = None,
        checkpoints: Watch | None = None,
        progress: Translator | None = None,
        standby: Watch | None = None,
        started: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """`root`: the run's output folder, in which `stop_request` is. has_left: whether the trainer has recorded that
        it leaves early. why_signalled: the reason for the signals. started: the step's srun, if it runs already. The
        others watch the step, each where it is given.
        """
        self.log, self.signals, self.root, self.stop_request = log, signals, root, stop_request
        self.has_left, self.heartbeat, self.leave_s = has_left, heartbeat, leave_s
        self.handler, self.hangs = handler, hangs
        self._why_signalled = why_signalled or (lambda: f"the job got {signals.names()}")
        self._progress = progress
        self._watches = [one for one in (hangs, cron, heartbeat, handler, checkpoints, standby) if one is not None]
        self.ended_hard = False
        self.ended_on_request = False
        self.ended_hung = False
        self.lost_nodes: list[str] = []
        self.first_exit: LauncherExit | None = None
        self._leaving_since: float | None = None
        self._is_overtaken = False
        self._checked_at = 0.0
        self._seen_end = b""
        self._ended_step = ""  # as Slurm names it, once a launcher has failed
        self._failed_at: float | None = None
        self._killer: subprocess.Popen[bytes] | None = None
        self._environment = dict(environment)
        # A session of its own: what the terminal or Slurm sends to the batch process's group does not reach srun.
        self._srun = started or subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )

    def run(self) -> int:
        """Copy output until the step has ended; its exit code, 128 + N when srun was ended by signal N."""
        assert self._srun.stdout is not None
        fd = self._srun.stdout.fileno()
        os.set_blocking(fd, False)
        is_open = True
        while is_open or self._srun.poll() is None:
            if is_open:
                is_open = self._copy_what_comes(fd)
            else:
                time.sleep(0.05)
            self.log.flush_if_due()
            self._check_watches()
            self._check_leaving()
            self._kill_followers()
            if self.ended_hard and self._srun.poll() is not None:
                break  # a process that outlived srun may hold the pipe for ever
        for line in self._progress.last() if self._progress else ():
            self.log.add_line(line)
        self.log.close()
        if self._killer is not None:  # the step has ended, also where no controller answered
            self._killer.kill()
            self._killer.wait()
        code = self._srun.wait()
        return code if code >= 0 else 128 - code

    def _copy_what_comes(self, fd: int) -> bool:
        """Copy the available output, after a short wait; return False at its end."""
        ready, _, _ = select.select([fd], [], [], FLUSH_S)
        if not ready:
            return True
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._parse(data)
        if self.hangs is not None:
            self.hangs.heard(data)
        self.log.feed(data)
        for line in self._progress.lines(data) if self._progress else ():
            self.log.add_line(line)
            if self.hangs is not None:
                self.hangs.heard(f"{line}\n".encode())
        return True

    def _parse(self, data: bytes) -> None:
        """Note when the trainer reports that it leaves, lost nodes, and which launcher failed first."""
        seen = self._seen_end + data
        if self._leaving_since is None and any(words in seen for words in EARLY_MARKS):
            self._leaving_since = time.monotonic()
        for match in _LOST_NODE.finditer(seen):
            node = match[1].decode(errors="replace")
            if node not in self.lost_nodes:
                self.lost_nodes.append(node)
        for match in _TASK_EXIT.finditer(seen) if self.first_exit is None else ():
            if int(match[2]) != 128 + signal.SIGTERM:  # that is how srun ends the others
                self.first_exit = LauncherExit(match[1].decode(errors="replace"), int(match[2]))
                break
        if self.first_exit is not None and (ended := _ENDED_STEP.search(seen)):
            self._ended_step = self._ended_step or ended[1].decode()
            self._failed_at = self._failed_at or time.monotonic()
        self._seen_end = seen[-_OVERLAP_BYTES:]

    def _pass_on_signals(self) -> None:
        if self.signals.any and not os.path.lexists(self.stop_request):
            why = self._why_signalled()
            try:
                request_stop(self.root, self.stop_request, why)
            except OSError as error:
                self.log.add_line(f"opsctl: {why}, but {self.stop_request} cannot be written: {error.strerror}")
                return
            self.log.add_line(f"opsctl: {why}: asked the trainer to save and exit ({self.stop_request})")

    def _check_watches(self) -> None:
        """Report what the watches found; end the step where it hangs or ignores a request."""
        if self.hangs is not None and self._leaving_since is None:
            self.hangs.check()
        for watch in self._watches:
            for line in watch.news():
                self.log.add_line(line)
        self._pass_on_signals()
        if self.heartbeat is not None and self.heartbeat.lost and not self._is_overtaken:
            self._leave_overtaken(self.heartbeat.lost)
        if self._leaving_since is None:
            self.ended_on_request = self.handler is not None and self.handler.is_overdue()
            self.ended_hung = not self.ended_on_request and self.hangs is not None and self.hangs.ends
            if self.ended_on_request or self.ended_hung:
                self._leaving_since = time.monotonic() - self.leave_s

    def _leave_overtaken(self, why: str) -> None:
        """Ask the trainer to leave because another job has the lease."""
        self._is_overtaken = True
        self.log.add_line(f"opsctl: the lease is lost: {why}; the trainer is asked to exit")
        try:
            request_stop(self.root, self.stop_request, f"the lease is lost: {why}")
        except OSError as error:
            self.log.add_line(f"opsctl: {self.stop_request} cannot be written: {error.strerror}")
        if self._leaving_since is None:
            self._leaving_since = time.monotonic()

    def _check_leaving(self) -> None:
        now = time.monotonic()
        if self._leaving_since is None and now - self._checked_at >= 1.0:
            self._checked_at = now
            if self.has_left():
                self._leaving_since = now
        if self._leaving_since is None or self._srun.poll() is not None:
            return
        late_s = now - self._leaving_since - self.leave_s
        if late_s > 0 and not self.ended_hard:
            self.ended_hard = True
            what = "was asked to exit" if self._is_overtaken else "began to exit"
            late = f"{what} {self.leave_s:.0f} s ago and the step is still there"
            late = "was asked to exit and did not begin to exit in time" if self.ended_on_request else late
            late = "hangs" if self.ended_hung else late
            self.log.add_line(f"opsctl: the trainer {late}: ending it")
            self._signal_srun(signal.SIGTERM)  # srun has Slurm kill the step's processes
        elif late_s > SRUN_END_S:
            self._signal_srun(signal.SIGKILL)  # a node does not answer; Slurm ends the rest when this process leaves

    def _kill_followers(self) -> None:
        """Kill the rest of a step in which a launcher has failed and which Slurm ends for that."""
        is_due = self._failed_at is not None and time.monotonic() - self._failed_at >= FOLLOW_S
        if not is_due or self._killer is not None or self.signals.any or self._leaving_since is not None:
            return
        words = ["scancel", "--quiet", "--signal=KILL", self._ended_step]
        with contextlib.suppress(OSError):
            self._killer = subprocess.Popen(words, env=self._environment, stdin=subprocess.DEVNULL)

    def _signal_srun(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._srun.pid, number)
