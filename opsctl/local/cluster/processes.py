"""Which processes belong to a local cluster, and ending them. Nothing is ever found by its name alone."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.local.cluster.files import Places

#: Every daemon carries this variable with its cluster's folder; jobs do not inherit it.
MARKER = "OPSCTL_LOCAL_CLUSTER"


@dataclass(frozen=True)
class Process:
    """One living process of a cluster."""

    pid: int
    kind: str  # "daemon", "step" (a slurmstepd) or "task" (what jobs run)
    command: str  # for messages
    node: str = ""  # of a step or task: the cluster's node it runs on


def processes_of(places: Places) -> list[Process]:
    """All living processes of the cluster in this folder, whoever started them, named by a pid file or not.

    A daemon shows by the marker in its environment. A slurmstepd may overwrite its own, so it shows by its open files
    too. A task shows by the SLURM_CONF and node name that slurmd gave it, or as a child of one that does.
    """
    mine = os.getpid()
    marker = os.fsencode(f"{MARKER}={places.folder}")
    configurations = {os.fsencode(f"SLURM_CONF={root}/slurm.conf") for root in (places.root, places.folder)}
    found: dict[int, tuple[str, str]] = {}
    parents: dict[int, int] = {}
    for pid in _all_pids():
        parent = _living_parent(pid)
        if parent is None or pid == mine:
            continue
        parents[pid] = parent
        environment = _read(pid, "environ").split(b"\0")
        if _read(pid, "cmdline").startswith(b"slurmstepd:"):
            node = _node_of_step(pid, places, marked=marker in environment)
            if node is not None:
                found[pid] = ("step", node)
        elif marker in environment:
            found[pid] = ("daemon", "")
        elif not configurations.isdisjoint(environment):
            nodes = [word.partition(b"=")[2] for word in environment if word.startswith(b"SLURMD_NODENAME=")]
            if nodes:
                found[pid] = ("task", os.fsdecode(nodes[0]))
    for pid in parents:
        for ancestor in _ancestors(pid, parents):
            kind, node = found.get(ancestor, ("", ""))
            if kind in ("step", "task"):
                found.setdefault(pid, ("task", node))
                break
    return [Process(pid, kind, _command(pid), node) for pid, (kind, node) in found.items()]


def pid_of(places: Places, daemon: str) -> int | None:
    """The living process that `daemon`'s pid file names, if it really is this cluster's."""
    try:
        pid = int(places.pid_file(daemon).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if is_daemon_of(places, pid) else None


def is_daemon_of(places: Places, pid: int) -> bool:
    """Whether `pid` lives and carries this cluster's marker: after a reboot a pid file may name anything."""
    return _living_parent(pid) is not None and os.fsencode(f"{MARKER}={places.folder}") in _read(pid, "environ").split(
        b"\0"
    )


def end(pids: list[int], grace_s: float, first: signal.Signals = signal.SIGTERM) -> None:
    """Send `first`, wait until all are gone, after `grace_s` seconds send SIGKILL and wait 5 s more at most."""
    with contextlib.ExitStack() as held:
        # A pidfd goes on meaning the same process, also when its number is given to another meanwhile.
        waiting: dict[int, int] = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(pid)
                held.callback(os.close, fd)
                waiting[fd] = pid
        for signal_number, patience_s in ((first, grace_s), (signal.SIGKILL, 5.0)):
            for fd in waiting:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    # SIGCONT as well: a stopped process would keep every other signal for later.
                    signal.pidfd_send_signal(fd, signal_number)
                    signal.pidfd_send_signal(fd, signal.SIGCONT)
            _await_gone(waiting, patience_s)


def _await_gone(waiting: dict[int, int], patience_s: float) -> None:
    poller = select.poll()
    for fd in waiting:
        poller.register(fd, select.POLLIN)
    deadline = time.monotonic() + patience_s
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        for fd, _ in poller.poll(left_s * 1000):
            poller.unregister(fd)
            pid = waiting.pop(fd)
            # Reap it where it is our child, or it stays as a zombie of ours.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _all_pids() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            yield int(entry.name)


def _living_parent(pid: int) -> int | None:
    """The parent's pid; None for what is gone or only waits to be reaped."""
    state_and_rest = _read(pid, "stat").rpartition(b") ")[2].split()
    if len(state_and_rest) < 2 or state_and_rest[0] in (b"Z", b"X"):
        return None
    return int(state_and_rest[1])


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    seen = {pid}
    while (pid := parents.get(pid, 0)) and pid not in seen:
        seen.add(pid)
        yield pid


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _node_of_step(pid: int, places: Places, marked: bool) -> str | None:
    """The node of a slurmstepd, by its slurmd's log that it holds open; "" when unclear, None for another cluster's."""
    ours = f"{places.folder}{os.sep}"
    log = re.compile(re.escape(f"{places.folder}/log/slurmd-") + r"(.+)\.log")
    held = ""
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if match := log.fullmatch(target):
                    return match[1]
                held = held or (target if target.startswith(ours) else "")
    return "" if held or marked else None


def _command(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()[:120]
