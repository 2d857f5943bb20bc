"""Asking a program in a process of its own: what hangs in the kernel must not take the look along."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """What it printed, and why that is not to be had."""

    out: str = ""
    problem: str = ""
    is_hanging: bool = False


def ask(command: Sequence[str], timeout_s: float, longest: int = 1 << 20) -> Said:
    """Run `command` in the plain locale for `timeout_s` seconds at most; it and what it started are killed then.

    What does not even hear that is not waited for.
    """
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Said(problem=f"{command[0]} cannot be run: {getattr(error, 'strerror', None) or error}")
    try:
        out, err = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        return Said(problem=f"{command[0]} did not answer within {timeout_s:g} s", is_hanging=True)
    if child.returncode != 0:
        words = err[:longest].decode(errors="replace").strip().splitlines()
        return Said(problem=words[-1] if words else f"{command[0]} ended with exit code {child.returncode}")
    return Said(out[:longest].decode(errors="replace"))
