"""Real processes killed with -9 as they enter a system call that changes files, whichever one is wanted.

`Watched` forks a process whose kernel stops it at every such call (seccomp and ptrace; nothing in the process is
patched), tells them, and kills it at the n-th. The forking process must have no other children and no threads.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_PTRACE_TRACEME, _PTRACE_CONT, _PTRACE_SETOPTIONS, _PTRACE_GET_SYSCALL_INFO = 0, 7, 0x4200, 0x420E
_TRACE_FORKS_CLONES_SECCOMP_AND_KILL_WITH_ME = 0x2 | 0x4 | 0x8 | 0x80 | 0x100000
_EVENT_SECCOMP = 7
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_ALLOW, _TRACE, _ERRNO = 0x7FFF0000, 0x7FF00000, 0x00050000
_EINVAL = 22
_O_CREAT = 0x40
_WALL = 0x40000000

# name -> (number on x86_64, number on aarch64, where its file is: "fd" or "path" in the first argument, "at": a
# folder's descriptor and a path in the first two). What has no number on aarch64 is not there.
_CALLS: dict[str, tuple[int, int | None, str]] = {
    "write": (1, 64, "fd"),
    "pwrite64": (18, 68, "fd"),
    "writev": (20, 66, "fd"),
    "fsync": (74, 82, "fd"),
    "fdatasync": (75, 83, "fd"),
    "ftruncate": (77, 46, "fd"),
    "rename": (82, None, "path"),
    "mkdir": (83, None, "path"),
    "rmdir": (84, None, "path"),
    "unlink": (87, None, "path"),
    "openat": (257, 56, "at"),
    "mkdirat": (258, 34, "at"),
    "unlinkat": (263, 35, "at"),
    "renameat": (264, 38, "at"),
    "renameat2": (316, 276, "at"),
}
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine())
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def why_not() -> str | None:
    """Why nothing can be watched on this machine, None where it can."""
    if _COLUMN is None:
        return f"system calls of {platform.machine()} are not known here"
    watched = Watched(lambda: None, Path("/"))
    return None if watched.problem is None else watched.problem


@dataclass
class Watched:
    """A process that does `act`, from its start to its end. `beside` are done by processes that no one watches.

    root: only calls on files under it count. kill_at: the number, from 0, of the call that it does not live to make.
    without: names of calls that the kernel refuses it with EINVAL, as a file system that does not know them.
    """

    act: Callable[[], None]
    root: Path
    kill_at: int | None = None
    without: tuple[str, ...] = ()
    beside: tuple[Callable[[], None], ...] = ()
    calls: list[str] = field(default_factory=list)
    status: int | None = None  # what waitpid said of it at last; -9 for one that was killed
    problem: str | None = None

    def __post_init__(self) -> None:
        others = {_forked(act, self.without, traced=False) for act in self.beside}
        child = _forked(self.act, self.without, traced=True)
        try:
            self._watch(child, others)
        finally:
            for other in others:
                if self.status != 0:
                    os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)

    def _watch(self, child: int, others: set[int]) -> None:
        _, status = os.waitpid(child, _WALL)
        if not os.WIFSTOPPED(status):
            self.problem, self.status = "ptrace is forbidden here", os.waitstatus_to_exitcode(status)
            return
        _ptrace(_PTRACE_SETOPTIONS, child, _TRACE_FORKS_CLONES_SECCOMP_AND_KILL_WITH_ME)
        _ptrace(_PTRACE_CONT, child, 0)
        while self.status is None:
            task, status = os.waitpid(-1, _WALL)
            if os.WIFSTOPPED(status):
                self._stopped(child, task, status)
            elif task == child:
                self.status = os.waitstatus_to_exitcode(status)
            else:
                others.discard(task)

    def _stopped(self, child: int, task: int, status: int) -> None:
        number = os.WSTOPSIG(status)
        passed_on = 0
        if status >> 16 == _EVENT_SECCOMP:
            call = _call_of(task, self.root)
            if call is not None:
                if len(self.calls) == self.kill_at:
                    os.kill(child, signal.SIGKILL)
                self.calls.append(call)
        elif status >> 16 == 0 and number not in (signal.SIGTRAP, signal.SIGSTOP):
            passed_on = number
        _ptrace(_PTRACE_CONT, task, passed_on)


def _ptrace(request: int, process: int, data: int) -> None:
    _libc.ptrace(request, process, None, data)  # of one that was just killed it fails, and its end is waited for


def _forked(act: Callable[[], None], without: tuple[str, ...], traced: bool) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if traced:
            if _libc.ptrace(_PTRACE_TRACEME, 0, None, None) != 0:
                os._exit(3)
            os.kill(os.getpid(), signal.SIGSTOP)
        _filter(without, traced)
        act()
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(status)


def _filter(without: tuple[str, ...], traced: bool) -> None:
    """Have the kernel refuse some calls of this process, and stop it for who traces it at the others of the table."""
    words = [(0x20, 0, 0, 0)]  # load the call's number
    for name, (*numbers, _) in _CALLS.items():
        assert _COLUMN is not None
        number = numbers[_COLUMN]
        if number is not None and (name in without or traced):
            words += [(0x15, 0, 1, number), (0x06, 0, 0, _ERRNO | _EINVAL if name in without else _TRACE)]
    words.append((0x06, 0, 0, _ALLOW))
    program = b"".join(struct.pack("HBBI", *word) for word in words)
    kept = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxQ", len(words), ctypes.addressof(kept))
    _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if _libc.prctl(_PR_SET_SECCOMP, 2, ctypes.c_char_p(header)) != 0:
        os._exit(4)


def _call_of(task: int, root: Path) -> str | None:
    """`name path` of the call that `task` is about to make; None where it changes nothing under `root`."""
    info = ctypes.create_string_buffer(88)
    if _libc.ptrace(_PTRACE_GET_SYSCALL_INFO, task, len(info), ctypes.addressof(info)) < 0:
        return None
    number, *arguments = struct.unpack_from("7Q", info.raw, 24)
    assert _COLUMN is not None
    name, where = next((name, call[2]) for name, call in _CALLS.items() if call[_COLUMN] == number)
    if name == "openat" and not arguments[2] & _O_CREAT:
        return None
    try:
        path = _path(task, where, arguments)
    except OSError:
        return None
    return f"{name} {path.relative_to(root)}" if path.is_relative_to(root) else None


def _path(task: int, where: str, arguments: list[int]) -> Path:
    """Return where the file of a call is, whichever way the process has put it. Raises OSError."""
    if where == "fd":
        return _of_descriptor(task, arguments[0])
    text = Path(_text(task, arguments[1 if where == "at" else 0]))
    if not text.is_absolute():
        folder = ctypes.c_int(arguments[0] & 0xFFFFFFFF).value if where == "at" else -100
        return (Path(f"/proc/{task}/cwd").readlink() if folder == -100 else _of_descriptor(task, folder)) / text
    if text.parts[1:4] == ("proc", "self", "fd"):
        return _of_descriptor(task, int(text.parts[4])).joinpath(*text.parts[5:])
    return text


def _of_descriptor(task: int, number: int) -> Path:
    return Path(f"/proc/{task}/fd/{number}").readlink()


def _text(task: int, address: int) -> str:
    with Path(f"/proc/{task}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(4096).split(b"\0")[0].decode()
