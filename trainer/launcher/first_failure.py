"""The first rank to fail and its flight records."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trainer.formats.attempt.error_file import GroupProgress, failure_sentence, is_lost_peer, read_dump

# Seconds that the others are given once a rank has failed. What they could still do together, save above all, they
# cannot without it; and one that waits for it inside NCCL answers no SIGTERM.
FOLLOW_WITHIN_S = 5.0

# How long after the first death another one may still turn out to be the cause: the kernel closes a killed process's
# connections before it reports the death, so its peers can be seen dying first, by moments.
_SAME_MOMENT_S = 2.0


@dataclass(frozen=True)
class Death:
    """A rank that ended with another exit status than 0, or whose end was not seen here."""

    local_rank: int
    at: datetime  # with zone
    exit_code: int | None  # None when a signal ended it
    signal: int | None

    @property
    def is_seen(self) -> bool:
        """Return whether its end was seen here. Otherwise torch's agent has reaped it, and knows."""
        return self.exit_code is not None or self.signal is not None


class DeathWatch:
    """Watches this node's ranks from a thread of the launcher.

    Start it before the ranks are forked; each then reports its pid, and `on_pid(local_rank, pid)` is called. Ranks that
    are still there `follow_within_s` seconds after the first failed are killed.
    """

    def __init__(
        self,
        on_pid: Callable[[int, int], None] = lambda _rank, _pid: None,
        follow_within_s: float = FOLLOW_WITHIN_S,
    ) -> None:
        self._read_fd, self._write_fd = os.pipe()
        self._on_pid = on_pid
        self._lock = threading.Lock()
        self._deaths: list[Death] = []
        self._follow_within_s = follow_within_s
        self._kill_at: float | None = None
        self._thread = threading.Thread(target=self._watch, name="death-watch", daemon=True)

    def start(self) -> None:
        """Start the thread, which ends with the process. Once only: RuntimeError after that."""
        self._thread.start()

    def report(self, local_rank: int) -> None:
        """Report the rank's process. Called first in the forked rank."""
        os.write(self._write_fd, f"{local_rank} {os.getpid()}\n".encode())

    def deaths(self) -> list[Death]:
        """Those so far, in the order in which they happened."""
        with self._lock:
            return list(self._deaths)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._read_fd, select.POLLIN)
        ranks: dict[int, int] = {}  # pidfd -> local rank
        unread = b""
        while True:
            for fd, _ in poll.poll(self._milliseconds_left()):
                if fd == self._read_fd:
                    *lines, unread = (unread + os.read(fd, 4096)).split(b"\n")
                    for line in lines:
                        local_rank, pid = map(int, line.split())
                        self._on_pid(local_rank, pid)
                        try:
                            pidfd = os.pidfd_open(pid)
                        except ProcessLookupError:  # dead and reaped already
                            self._note(local_rank, None, None)
                            continue
                        ranks[pidfd] = local_rank
                        poll.register(pidfd, select.POLLIN)
                else:
                    poll.unregister(fd)
                    self._remember(ranks.pop(fd), fd)
                    os.close(fd)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                for pidfd in ranks:
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _milliseconds_left(self) -> float | None:
        """Until the others are killed; None where that is not to come, or has been."""
        return None if self._kill_at is None else max(0.0, (self._kill_at - time.monotonic()) * 1000)

    def _remember(self, local_rank: int, pidfd: int) -> None:
        try:
            # WNOWAIT: the agent must still find the process to reap.
            status = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # reaped between the poll and here
            self._note(local_rank, None, None)
            return
        if status is None or (status.si_code == os.CLD_EXITED and status.si_status == 0):
            return
        exited = status.si_code == os.CLD_EXITED
        code, number = (status.si_status, None) if exited else (None, status.si_status)
        if not any(one.is_seen for one in self._deaths):
            self._kill_at = time.monotonic() + self._follow_within_s
        self._note(local_rank, code, number)

    def _note(self, local_rank: int, exit_code: int | None, signal_number: int | None) -> None:
        with self._lock:
            self._deaths.append(Death(local_rank, datetime.now().astimezone(), exit_code, signal_number))


def first_to_fail(deaths: list[Death], message_of: Callable[[int], str]) -> tuple[Death, str] | None:
    """Return the death that the others followed, and one line about it; None without deaths, which are in order.

    `message_of(local_rank)` is the text in the rank's error file, "" without one.
    """
    if not deaths:
        return None
    together = [death for death in deaths if (death.at - deaths[0].at).total_seconds() <= _SAME_MOMENT_S]
    first = next((death for death in together if not _follows(death, message_of(death.local_rank))), deaths[0])
    message = message_of(first.local_rank)
    return first, failure_sentence(first.exit_code, first.signal, message, followed=_follows(first, message))


def _follows(death: Death, message: str) -> bool:
    return death.signal == signal.SIGTERM or is_lost_peer(message)


#: What a rank's dump and the pipe that asks for one are called, before its number.
_DUMP = "flight-"
_LARGEST_BYTES = 256 << 20
_POLL_S = 0.1


def record_in(folder: Path) -> None:
    """Have the ranks that this process forks record, and write below `folder`, as far as the user has not said else.

    NCCL's ranks alone read these variables; torch has called them otherwise before 2.10, and warns of the old names.
    A rank fails that cannot make its pipe: where the file system has none, it is not told to, and is not asked.
    """
    import torch

    has_new_names = hasattr(torch._C, "_distributed_c10d") and hasattr(torch._C._distributed_c10d, "_dump_fr_trace")
    size, file = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    if not has_new_names:
        size, file = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    if not {"TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"} & os.environ.keys():
        os.environ.setdefault(size, "2000")
        os.environ.setdefault(file, str(folder / _DUMP))
    if _has_pipes(folder):
        os.environ.setdefault("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(folder / _DUMP))


def _has_pipes(folder: Path) -> bool:
    """Return whether the file system of `folder` has named pipes; some shared ones do not."""
    pipe = folder / f".{_DUMP}{os.getpid()}.pipe"
    try:
        os.mkfifo(pipe)
        pipe.unlink()
    except OSError:
        return False
    return True


def dumped(folder: Path, ranks: Sequence[int], wait_s: float) -> list[GroupProgress]:
    """Ask the recorders of these ranks, and read what they write within `wait_s` seconds; those that answer nothing,
    without NCCL all of them, are left out.
    """
    seen = {rank: _changed(folder / f"{_DUMP}{rank}") for rank in ranks}  # before any rank is asked
    before = {rank: changed for rank, changed in seen.items() if _ask(folder / f"{_DUMP}{rank}.pipe")}
    found: list[GroupProgress] = []
    until = time.monotonic() + wait_s
    while before:
        for rank in [one for one, changed in before.items() if _changed(folder / f"{_DUMP}{one}") != changed]:
            with contextlib.suppress(OSError, ValueError):  # the rest of it is still to come
                found += read_dump(_read(folder / f"{_DUMP}{rank}"), rank)
                del before[rank]
        if time.monotonic() >= until:
            break
        time.sleep(_POLL_S)
    return found


def _ask(pipe: Path) -> bool:
    """Ask the listener of a pipe; return whether there is one."""
    try:
        fd = _own(pipe, os.O_WRONLY, stat.S_ISFIFO)
    except OSError:
        return False
    try:
        return os.write(fd, b"1\n") > 0
    except OSError:
        return False
    finally:
        os.close(fd)


def _own(path: Path, access: int, is_kind: Callable[[int], bool]) -> int:
    """Return a descriptor of this account's own file of that kind. Other users may write in the folder too: their
    links, pipes and files are not opened, and do not block. Raises OSError.
    """
    fd = os.open(path, access | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC)
    found = os.fstat(fd)
    if is_kind(found.st_mode) and found.st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise PermissionError(errno.EPERM, "another user's, or of another kind", str(path))


def _changed(path: Path) -> tuple[int, int]:
    try:
        found = path.lstat()
        return found.st_mtime_ns, found.st_size
    except OSError:
        return 0, 0


def _read(path: Path) -> bytes:
    with os.fdopen(_own(path, os.O_RDONLY, stat.S_ISREG), "rb") as file:
        return file.read(_LARGEST_BYTES)
