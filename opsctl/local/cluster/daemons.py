"""Starting one daemon of a local cluster, and what its log says when it does not come."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.local.cluster.files import Places
from opsctl.local.cluster.processes import MARKER, pid_of

_PID_FILE_SETTLES_S = 3.0
_COMPLAINT = re.compile(r"fatal|error", re.IGNORECASE)
_STAMP = re.compile(r"^(\[[^]]*\]|\d{4}-\d\d-\d\d [\d:]+ *(\d+ )?)\s*")


def start(
    places: Places,
    daemon: str,
    command: Sequence[str],
    environment: dict[str, str],
    *,
    detach: bool = False,
    timeout_s: float = 30,
) -> None:
    """Run `command`, which puts itself into the background, or with `detach` is put there.

    Its first words go to the daemon's own log. Raises OpsctlError when it ends with an error at once.
    """
    log = places.log(daemon)
    # An old pid file would look like a daemon that started and died.
    places.pid_file(daemon).unlink(missing_ok=True)
    argv = ["setsid", "--fork", *command] if detach else list(command)
    with log.open("ab") as out:
        # A foreground process group of the caller would pass Ctrl-C on to the daemons.
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
        raise OpsctlError(f"{daemon} did not come within {timeout_s:g} s: {complaint(log)}") from None
    if status:
        raise OpsctlError(f"{daemon} ended at once (exit status {status}): {complaint(log)}")


def await_ready(
    what: str, log: Path, is_ready: Callable[[], bool], is_alive: Callable[[], bool], timeout_s: float
) -> None:
    """Wait until `is_ready`. Raises OpsctlError with the log's words when `timeout_s` passes or the daemon is gone."""
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
    """Alive, or not long past the point where it writes its pid file: some write it just before they fork."""
    try:
        age_s = time.time() - places.pid_file(daemon).stat().st_mtime
    except FileNotFoundError:
        return True
    return pid_of(places, daemon) is not None or age_s < _PID_FILE_SETTLES_S


def answers(path: Path) -> bool:
    """Whether somebody listens on the Unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
        return True


def listens(port: int) -> bool:
    """Whether somebody listens on the TCP port here."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        return client.connect_ex(("127.0.0.1", port)) == 0


def complaint(log: Path) -> str:
    """The last two lines of `log` that say error or fatal, else the last, without time stamps; where the rest is."""
    try:
        lines = [
            line for line in log.read_text(encoding="utf-8", errors="replace")[-20000:].splitlines() if line.strip()
        ]
    except OSError as error:
        return f"no log ({error.strerror}: {log})"
    if not lines:
        return f"its log is empty ({log})"
    complaints = [_STAMP.sub("", line.strip()) for line in lines if _COMPLAINT.search(line)]
    # slurmctld's fatal line often only repeats that it cannot go on; the one before it says why.
    said = list(dict.fromkeys(complaints[-2:])) or [_STAMP.sub("", lines[-1].strip())]
    return f"{'; '.join(said)} ({log})"


def daemon_environment(bin_folders: Sequence[str], library_folders: Sequence[str], slurm_conf: Path) -> dict[str, str]:
    """What daemons see: nothing of the caller's settings but where things are. Jobs bring their own environment."""
    kept = {name: os.environ[name] for name in ("HOME", "TZ", "LANG") if name in os.environ}
    path = [*bin_folders, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    kept |= {"PATH": os.pathsep.join(path), "LC_ALL": "C", "SLURM_CONF": str(slurm_conf)}
    if library_folders:
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(library_folders)
    return kept
