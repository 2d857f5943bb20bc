"""Asking a program in a process of its own: what hangs in the kernel must not take the look along."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.programs import Overdue, find_program, run_program


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
    path = find_program(command[0], environment)
    if path is None:
        return Said(problem=f"{command[0]} cannot be run: No such file or directory")
    try:
        ended = run_program([path, *command[1:]], environment, timeout_s)
    except Overdue:
        return Said(problem=f"{command[0]} did not answer within {timeout_s:g} s", is_hanging=True)
    except (OSError, ValueError) as error:
        return Said(problem=f"{command[0]} cannot be run: {getattr(error, 'strerror', None) or error}")
    if ended.code != 0:
        words = ended.err[:longest].decode(errors="replace").strip().splitlines()
        problem = words[-1] if words else f"{command[0]} ended with exit code {ended.code}"
        return Said(ended.out[:longest].decode(errors="replace"), problem)
    return Said(ended.out[:longest].decode(errors="replace"))
