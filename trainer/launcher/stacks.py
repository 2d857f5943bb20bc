"""Print the stacks of this job's ranks on this node: `python -m trainer.launcher.stacks [--wait-s S] [--native]`.

Prints lines of JSON (formats.rank_stacks) for each rank, in order. It reads or signals only processes of this account
and this job, on this node, that listen for it (trainer.launcher.stacks), whatever any file says.

py-spy reads the memory of a process, also of a stopped one, and disturbs none. Without py-spy, or if it cannot read a
process, the process is signalled and writes its Python stacks itself. Ranks of another training program, which are
found by torchrun's variables, are only read: the signal would end them.

With --flights-under FOLDER, an attempt's, NCCL's flight recorders of this node, which write in it, report how far every
rank is in each process group.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer.formats.attempt.error_file import SHELLS, RankStack, pieces
from trainer.formats.json_text import json_line
from trainer.launcher.first_failure import dumped
from trainer.launcher.stack_dump import spied

#: Not SIGUSR1, with which Slurm warns of the time limit.
SIGNAL = signal.SIGUSR2
_NAME = "opsctl-stacks-of-rank-"
#: What /proc/PID/fd/N leads to, before the rank's number.
LINK = f"/memfd:{_NAME}"


def listen(rank: int) -> None:
    """Take SIGNAL as that wish from now on."""
    memory = os.memfd_create(f"{_NAME}{rank}")
    faulthandler.register(SIGNAL, file=memory, all_threads=True, chain=False)


_POLL_S = 0.05
#: A memory file that has not grown for so long has the whole of it.
_SETTLED_S = 0.2
_LARGEST_BYTES = 1 << 20
_SAME_JOB = ("SLURM_JOB_ID", "SLURMD_NODENAME")


@dataclass(frozen=True)
class Listener:
    """A rank's process; our trainer's writes its stacks when it is signalled."""

    rank: int
    pid: int
    memory: Path | None  # /proc/PID/fd/N; None: another training program's, which is only read and never signalled


def main(arguments: list[str] | None = None) -> int:
    """Print each rank's stacks; 1 where there is no rank."""
    parser = argparse.ArgumentParser(
        prog="trainer.launcher.stacks", description="Print the stacks of this node's ranks."
    )
    parser.add_argument("--wait-s", type=float, default=5.0, help="longest wait for a rank's answer, seconds")
    parser.add_argument("--native", action="store_true", help="also print C++ frames; a rank stops for a second")
    parser.add_argument("--flights-under", type=Path, help="the attempt's folder, where flight recorders write")
    given = parser.parse_args(arguments)
    ranks = listeners(Path("/proc"), os.environ)
    node = os.environ.get("SLURMD_NODENAME", "")
    for stack in told(ranks, node, given.wait_s, given.native):
        for piece in pieces(stack):
            sys.stdout.write(json_line(piece) + "\n")
    if given.flights_under is not None and node:
        for progress in dumped(given.flights_under / node, [one.rank for one in ranks], given.wait_s):
            sys.stdout.write(json_line(progress) + "\n")
    return 0 if ranks else 1


def told(ranks: list[Listener], node: str, wait_s: float, native: bool = False) -> list[RankStack]:
    """Each rank's stacks: read from outside where that can be, else written by itself."""
    seen = spied([one.pid for one in ranks], wait_s, native)
    asked = [one for one in ranks if one.memory is not None and not seen.get(one.pid)]
    by_itself = {one.rank: one for one in taken(asked, node, wait_s)}
    return [
        by_itself.get(one.rank) or RankStack(one.rank, node, one.pid, _state(one.pid), seen.get(one.pid, ""))
        for one in ranks
    ]


def listeners(proc: Path, environment: Mapping[str, str]) -> list[Listener]:
    """Return the ranks of the job and node of `environment`, in order, without the processes that a rank has forked.

    Ranks that do not listen count if none listens: they are another training program's.
    """
    found: dict[int, Listener] = {}
    silent: dict[int, Listener] = {}
    for entry in proc.iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == os.geteuid() and _is_of_this_job(entry, environment):
                listener = _listener(entry)
                if listener is not None:
                    found[listener.pid] = listener
                elif (rank := _rank_by_variables(entry)) is not None:
                    silent[int(entry.name)] = Listener(rank, int(entry.name), None)
    found = found or silent
    ranks = [one for one in found.values() if _parent(proc / str(one.pid)) not in found]
    return sorted(ranks, key=lambda one: one.rank)


def taken(ranks: list[Listener], node: str, wait_s: float) -> list[RankStack]:
    """Signal all of them, and collect what they write within `wait_s` seconds."""
    before = {one.pid: _size(one) for one in ranks}
    for one in ranks:
        with contextlib.suppress(OSError):
            os.kill(one.pid, SIGNAL)
    _wait(ranks, before, wait_s)
    return [RankStack(one.rank, node, one.pid, _state(one.pid), _written(one, before[one.pid])) for one in ranks]


def _wait(ranks: list[Listener], before: Mapping[int, int], wait_s: float) -> None:
    until, sizes, still_since = time.monotonic() + wait_s, dict(before), time.monotonic()
    while time.monotonic() < until:
        time.sleep(_POLL_S)
        now = {one.pid: _size(one) for one in ranks}
        if now != sizes:
            sizes, still_since = now, time.monotonic()
        elif time.monotonic() - still_since >= _SETTLED_S and all(now[pid] > size for pid, size in before.items()):
            return


def _is_of_this_job(entry: Path, environment: Mapping[str, str]) -> bool:
    own = (entry / "environ").read_bytes().split(b"\0")
    return all(
        f"{name}={environment[name]}".encode(errors="surrogateescape") in own
        for name in _SAME_JOB
        if name in environment
    )


def _rank_by_variables(entry: Path) -> int | None:
    """Return the rank by torchrun's variables; None for any other process, and for a shell that starts a rank."""
    variables = dict(one.split(b"=", 1) for one in (entry / "environ").read_bytes().split(b"\0") if b"=" in one)
    rank = variables.get(b"RANK", b"")
    if not rank.isdigit() or b"LOCAL_RANK" not in variables:
        return None
    return None if (entry / "comm").read_text(errors="replace").strip() in SHELLS else int(rank)


def _listener(entry: Path) -> Listener | None:
    for link in (entry / "fd").iterdir():
        with contextlib.suppress(OSError):
            leads_to = os.readlink(link)  # noqa: PTH115 - to no path
            number = leads_to.removeprefix(LINK).partition(" ")[0]
            if leads_to.startswith(LINK) and number.isdecimal():
                return Listener(int(number), int(entry.name), link)
    return None


def _status(entry: Path) -> list[str]:
    """Return the fields of /proc/PID/stat after the program's name: state, parent, ..."""
    try:
        return (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _parent(entry: Path) -> int:
    fields = _status(entry)
    return int(fields[1]) if len(fields) > 1 else 0


def _state(pid: int) -> str:
    return next(iter(_status(Path(f"/proc/{pid}"))), "gone")


def _size(one: Listener) -> int:
    with contextlib.suppress(OSError):
        return one.memory.stat().st_size if one.memory is not None else 0
    return 0


def _written(one: Listener, start: int) -> str:
    if one.memory is None:
        return ""
    with contextlib.suppress(OSError), one.memory.open("rb") as file:
        file.seek(start)
        return file.read(_LARGEST_BYTES).decode(errors="replace")
    return ""


if __name__ == "__main__":
    sys.exit(main())
