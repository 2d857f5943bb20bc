"""The processes of a local cluster: start a daemon, find the cluster's processes, end them.

No process is found by its name alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from opsctl.core.errors import OpsctlError
from opsctl.local.cluster.files import Places

#: An environment variable of every daemon with its cluster's folder; jobs do not inherit it.
MARKER = "OPSCTL_LOCAL_CLUSTER"
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
_PID_FILE_SETTLES_S = 3.0
_COMPLAINT = re.compile(r"fatal|error", re.IGNORECASE)
_STAMP = re.compile(r"^(\[[^]]*\]|\d{4}-\d\d-\d\d [\d:]+ *(\d+ )?)\s*")


@dataclass(frozen=True)
class Process:
    """One running process of a cluster."""

    pid: int
    kind: str  # "daemon", "step" (a slurmstepd) or "task" (a job's program)
    command: str  # for messages
    node: str = ""  # of a step or task: its node


def processes_of(places: Places) -> list[Process]:
    """Return all running processes of the cluster, with or without a pid file, of all users.

    A daemon has the marker in its environment. A slurmstepd may overwrite its environment, so its open files count
    too. A task has the SLURM_CONF and node name from slurmd, or is a descendant of one that does.
    """
    configurations = {f"{root}/slurm.conf" for root in (places.root, places.folder)}
    found: dict[int, tuple[str, str]] = {}
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() in _ENDED or process.pid == os.getpid():
                continue
            parents[process.pid] = process.ppid()
            commands[process.pid] = command = " ".join(process.cmdline())
            environment = process.environ()
            is_marked = environment.get(MARKER) == str(places.folder)
            if command.startswith("slurmstepd:"):
                if (node := _node_of_step(process, places, is_marked)) is not None:
                    found[process.pid] = ("step", node)
            elif is_marked:
                found[process.pid] = ("daemon", "")
            elif environment.get("SLURM_CONF") in configurations and "SLURMD_NODENAME" in environment:
                found[process.pid] = ("task", environment["SLURMD_NODENAME"])
    for pid in parents:
        ancestor, seen = pid, {pid}
        while (ancestor := parents.get(ancestor, 0)) and ancestor not in seen:
            seen.add(ancestor)
            kind, node = found.get(ancestor, ("", ""))
            if kind in ("step", "task"):
                found.setdefault(pid, ("task", node))
                break
    return [Process(pid, kind, commands[pid].strip()[:120], node) for pid, (kind, node) in found.items()]


def pid_of(places: Places, daemon: str) -> int | None:
    """Return the running process of the daemon's pid file, if it is this cluster's."""
    try:
        pid = int(places.pid_file(daemon).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if is_daemon_of(places, pid) else None


def is_daemon_of(places: Places, pid: int) -> bool:
    """Return True if `pid` runs and has this cluster's marker: after a reboot a pid file may name any process."""
    with contextlib.suppress(psutil.Error, OSError, ValueError, OverflowError):
        process = psutil.Process(pid)
        return process.status() not in _ENDED and process.environ().get(MARKER) == str(places.folder)
    return False


def end(pids: list[int], grace_s: float, first: signal.Signals = signal.SIGTERM) -> None:
    """Send `first` and wait until all have ended; after `grace_s` seconds send SIGKILL and wait up to 5 s more."""
    left = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            left.append(psutil.Process(pid))
    for signal_number, patience_s in ((first, grace_s), (signal.SIGKILL, 5.0)):
        for process in left:
            with contextlib.suppress(psutil.Error):
                # SIGCONT too, because a stopped process does not receive other signals.
                process.send_signal(signal_number)
                process.send_signal(signal.SIGCONT)
        _, left = psutil.wait_procs(left, patience_s)


def _node_of_step(process: psutil.Process, places: Places, is_marked: bool) -> str | None:
    """Return the node, by its slurmd's log that the step has open; empty: unclear; None: of another cluster."""
    log = re.compile(re.escape(f"{places.folder}/log/slurmd-") + r"(.+)\.log")
    files: list[str] = []
    with contextlib.suppress(psutil.Error, OSError):
        files = [file.path for file in process.open_files()]
    if match := next(filter(None, map(log.fullmatch, files)), None):
        return match[1]
    return "" if is_marked or any(file.startswith(f"{places.folder}{os.sep}") for file in files) else None


def start(
    places: Places,
    daemon: str,
    command: Sequence[str],
    environment: dict[str, str],
    *,
    detach: bool = False,
    timeout_s: float = 30,
) -> None:
    """Start a daemon that detaches itself, or `detach` it. Raises OpsctlError if it fails at once."""
    log = places.log(daemon)
    # An old pid file would look like a daemon that started and died.
    places.pid_file(daemon).unlink(missing_ok=True)
    argv = ["setsid", "--fork", *command] if detach else list(command)
    with log.open("ab") as out:
        # In the caller's foreground process group, Ctrl-C would also reach the daemons.
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**environment, MARKER: str(places.folder)},
            cwd="/",
            umask=0o022,
            start_new_session=True,
        )
    try:
        status = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise OpsctlError(f"{daemon} did not start within {timeout_s:g} s: {complaint(log)}") from None
    if status:
        raise OpsctlError(f"{daemon} ended at once (exit status {status}): {complaint(log)}")


def await_ready(
    what: str, log: Path, is_ready: Callable[[], bool], is_alive: Callable[[], bool], timeout_s: float
) -> None:
    """Wait until `is_ready`. Raises OpsctlError with the log's message after `timeout_s`, or if the daemon ended."""
    deadline = time.monotonic() + timeout_s
    while not is_ready():
        if not is_alive():
            if is_ready():
                return
            raise OpsctlError(f"{what} ended while starting: {complaint(log)}")
        if time.monotonic() > deadline:
            raise OpsctlError(f"{what} was not ready within {timeout_s:g} s: {complaint(log)}")
        time.sleep(0.03)


def may_be_starting(places: Places, daemon: str) -> bool:
    """Return True if it runs, or has just started: some daemons write their pid file just before they fork."""
    try:
        age_s = time.time() - places.pid_file(daemon).stat().st_mtime
    except FileNotFoundError:
        return True
    return pid_of(places, daemon) is not None or age_s < _PID_FILE_SETTLES_S


def answers(path: Path) -> bool:
    """Return True if a process listens on the Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def listens(port: int) -> bool:
    """Return True if a process listens on the TCP port here."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        return client.connect_ex(("127.0.0.1", port)) == 0


def complaint(log: Path) -> str:
    """Return the last two lines of `log` with error or fatal, else the last line, without times; and its path."""
    try:
        lines = [
            line for line in log.read_text(encoding="utf-8", errors="replace")[-20000:].splitlines() if line.strip()
        ]
    except OSError as error:
        return f"no log ({error.strerror}: {log})"
    if not lines:
        return f"its log is empty ({log})"
    complaints = [_STAMP.sub("", line.strip()) for line in lines if _COMPLAINT.search(line)]
    # slurmctld's fatal line often has no reason; the line before it has.
    message = list(dict.fromkeys(complaints[-2:])) or [_STAMP.sub("", lines[-1].strip())]
    return f"{'; '.join(message)} ({log})"


def daemon_environment(bin_folders: Sequence[str], library_folders: Sequence[str], slurm_conf: Path) -> dict[str, str]:
    """Return the environment of daemons: only paths of the caller's settings. Jobs bring their own environment."""
    kept = {name: os.environ[name] for name in ("HOME", "TZ", "LANG") if name in os.environ}
    path = [*bin_folders, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    kept |= {"PATH": os.pathsep.join(path), "LC_ALL": "C", "SLURM_CONF": str(slurm_conf)}
    if library_folders:
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(library_folders)
    return kept
