"""Running a program that is not ours to its end: for so long at most, or on this terminal for as long as it takes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: For what was killed to be gone. What hangs in the kernel, or gave its output to another, is not waited for.
_LAST_S = 2.0
#: What is read at once, and what a program may print before it waits for that.
_CHUNK_BYTES, _PIPE_BYTES = 256 * 1024, 1024 * 1024


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a program that ended by itself."""

    code: int  # negative: the signal that ended it
    out: bytes
    err: bytes


class Overdue(Exception):
    """It was killed when its time was up; it may have done its work."""

    def __init__(self, out: bytes) -> None:
        super().__init__("its time was up")
        self.out = out  # what it had printed by then


def run_on_terminal(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    descriptors: tuple[int, ...] = (),
    to_stderr: bool = False,
    meanwhile: Callable[[], None] = lambda: None,
) -> int:
    """Run `command` on this terminal; returns its exit code. descriptors: files that it inherits. to_stderr: where its
    output goes. meanwhile: called every second. Raises OSError.
    """
    stdout = sys.stderr.fileno() if to_stderr else None
    child = subprocess.Popen(command, env=environment, stdout=stdout, pass_fds=descriptors)
    previous = signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number))
    # A Ctrl-C reaches the child as well, which tidies up. KeyboardInterrupt inside wait() can leave its lock taken, and
    # every later wait would then last for ever.
    interrupt = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        while True:
            # With a time-out: a signal in the moment before a wait without one would be passed on only after it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(timeout=1.0)
            meanwhile()
    finally:
        signal.signal(signal.SIGTERM, previous)
        signal.signal(signal.SIGINT, interrupt)


def find_program(name: str, environment: Mapping[str, str]) -> str | None:
    """Its absolute path; a bare name is looked for in PATH, but not in what there means the working folder."""
    folders = [one for one in environment.get("PATH", "").split(os.pathsep) if one.startswith(os.sep)]
    path = shutil.which(name, path=os.pathsep.join(folders))
    return path if path is not None and path.startswith(os.sep) else None


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    stdin: bytes | None = None,
    *,
    folder: str | None = None,
    umask: int = -1,
    take: Callable[[bytes], None] | None = None,
) -> Ended:
    """Run `command`, whose first word is a path. take: is given the output in pieces, without `stdin`. Raises Overdue,
    OSError, ValueError.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        cwd=folder,
        umask=umask,
        start_new_session=True,
    )
    try:
        out, err = child.communicate(stdin, timeout=timeout_s) if take is None else _read(child, take, timeout_s)
    except subprocess.TimeoutExpired as late:
        raise Overdue(_kill(child) or late.stdout or b"") from None
    except BaseException:
        _kill(child)
        raise
    return Ended(child.returncode, out, err)


def _read(child: subprocess.Popen[bytes], take: Callable[[bytes], None], timeout_s: float) -> tuple[bytes, bytes]:
    """Hand over what it prints until it has ended; nothing, and all of its errors. Raises TimeoutExpired."""
    assert child.stdout is not None and child.stderr is not None
    with contextlib.suppress(OSError):  # there is a limit of such pages for each user
        fcntl.fcntl(child.stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    deadline, errors = time.monotonic() + timeout_s, bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, take)
        selector.register(child.stderr, selectors.EVENT_READ, errors.extend)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(child.args, timeout_s)
            for key, _ in ready:
                data = os.read(key.fd, _CHUNK_BYTES)
                if data:
                    key.data(data)
                else:
                    selector.unregister(key.fileobj)
    child.wait(max(0.0, deadline - time.monotonic()))
    child.stdout.close()
    child.stderr.close()
    return b"", bytes(errors)


def _kill(child: subprocess.Popen[bytes]) -> bytes:
    """End it and what it started; what it had printed, as far as that is to be had."""
    # It has not been waited for, so its process id is still its own and its group's.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    try:
        return child.communicate(timeout=_LAST_S)[0]
    except (subprocess.TimeoutExpired, ValueError, OSError):
        return b""


class ProgramProblem(Exception):
    """It could not be run to its end; the text says why, without what it printed."""

    def __init__(self, why: str, has_begun: bool) -> None:
        super().__init__(why)
        self.has_begun = has_begun  # it was handed its input, and may have done its work


def run_named_program(words: Sequence[str], environment: Mapping[str, str], timeout_s: float, stdin: str = "") -> Ended:
    """Run a program, found in PATH's absolute folders, for at most `timeout_s`. Raises ProgramProblem."""
    path = find_program(words[0], environment) if words else None
    if path is None:
        raise ProgramProblem("no such program: name it with its whole path", has_begun=False)
    handed = stdin.encode(errors="replace")
    try:
        return run_program([path, *words[1:]], environment, timeout_s, handed, folder="/")
    except Overdue:
        raise ProgramProblem(f"no answer within {timeout_s:g} s", has_begun=True) from None
    except (OSError, ValueError) as error:
        raise ProgramProblem(
            f"cannot be started: {getattr(error, 'strerror', None) or error}", has_begun=False
        ) from None


@dataclass(frozen=True)
class Said:
    """The output of a program, or the reason why there is none."""

    out: str = ""
    problem: str = ""
    is_hanging: bool = False


def ask(command: Sequence[str], timeout_s: float, longest: int = 1 << 20) -> Said:
    """Run `command` in the plain locale for at most `timeout_s`; then it and its children are killed."""
    try:
        ended = run_named_program(command, {**os.environ, "LC_ALL": "C"}, timeout_s)
    except ProgramProblem as problem:
        return Said(problem=f"{command[0]}: {problem}", is_hanging=problem.has_begun)
    out = ended.out[:longest].decode(errors="replace")
    if ended.code == 0:
        return Said(out)
    words = ended.err[:longest].decode(errors="replace").strip().splitlines()
    return Said(out, words[-1] if words else f"{command[0]} ended with exit code {ended.code}")
