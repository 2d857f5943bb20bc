"""Running a program that the reader's own settings name, with a time-out that ends it and what it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class ProgramProblem(Exception):
    """It could not be run to its end; the text says why, without what it printed."""

    def __init__(self, why: str, has_begun: bool) -> None:
        super().__init__(why)
        self.has_begun = has_begun  # it was handed its input, and may have done its work


@dataclass(frozen=True)
class Ended:
    """How a program ended."""

    code: int
    output: str  # what it printed on stdout


def run_program(words: Sequence[str], environment: Mapping[str, str], timeout_s: float, stdin: str = "") -> Ended:
    """Run it and wait, at most so long. A bare name is looked for in the absolute folders of PATH only.

    Raises ProgramProblem.
    """
    folders = [one for one in environment.get("PATH", "").split(os.pathsep) if one.startswith(os.sep)]
    path = shutil.which(words[0], path=os.pathsep.join(folders)) if words else None
    if path is None or not path.startswith(os.sep):
        raise ProgramProblem("no such program: name it with its whole path", has_begun=False)
    try:
        child = subprocess.Popen(
            [path, *words[1:]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise ProgramProblem(f"cannot be started: {error.strerror}", has_begun=False) from None
    try:
        output, _ = child.communicate(stdin.encode(errors="replace"), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ProgramProblem(f"no answer within {timeout_s:.0f} s", has_begun=True) from None
    finally:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    return Ended(child.returncode, output.decode(errors="replace"))
