"""Reading processes' stacks from outside by py-spy: of one that is stopped as well, and without stopping any."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

#: Processes that are read at a time.
_AT_ONCE = 8
#: Native frames are found in every library that a process has loaded, for which it stands still: seconds for each.
_NATIVE_S = 20.0


def spied(pids: Sequence[int], wait_s: float, native: bool = False) -> dict[int, str]:
    """Return pid -> its threads' stacks as faulthandler would write them, the main thread last, of the readable
    processes.

    native: frames of compiled code too, for which a process is stopped for a moment; one that is stopped already, or
    may not be traced, is read without. wait_s: longest time for one process, seconds.
    """
    program = find_spy(pids[0]) if pids else None
    if program is None:
        return {}
    until = time.monotonic() + max(wait_s, _NATIVE_S if native else 0.0)

    def read(pid: int) -> str:
        text = _dump(program, pid, until, "--native") if native and not _is_stopped(pid) else ""
        return text or _dump(program, pid, until, "--nonblocking")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {pid: text for pid, text in zip(pids, pool.map(read, pids), strict=True) if text}


def find_spy(pid: int) -> str | None:
    """py-spy's absolute path: beside this Python, else where process `pid` finds programs; None where it is nowhere."""
    folders = [str(Path(sys.executable).parent), *_path_of(pid)]
    return shutil.which("py-spy", path=os.pathsep.join(one for one in folders if one.startswith("/")))


def as_text(threads: Iterable[Any], pid: int) -> str:
    """py-spy's JSON of a process's threads in faulthandler's form. Raises KeyError, TypeError for other JSON. Pure."""
    main, others = "", []
    for thread in threads:
        frames = "".join(
            f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"]}\n' for frame in thread["frames"]
        )
        if thread["os_thread_id"] == pid:
            main = f"Current thread {thread['thread_id']:#x} (most recent call first):\n{frames}"
        else:
            others.append(f"Thread {thread['thread_id']:#x} (most recent call first):\n{frames}\n")
    return "".join(others) + main if main else ""


def _path_of(pid: int) -> list[str]:
    """Return the folders of PATH that a process was started with: an environment script may have set it."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
    return next((os.fsdecode(word[5:]).split(os.pathsep) for word in words if word.startswith(b"PATH=")), [])


def _dump(program: str, pid: int, until: float, how: str) -> str:
    try:
        done = subprocess.run(
            [program, "dump", "--json", how, "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.1, until - time.monotonic()),
            check=False,
        )
        return as_text(json.loads(done.stdout), pid) if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        return ""


def _is_stopped(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
            in "Tt"
        )
    except (OSError, IndexError):
        return True
