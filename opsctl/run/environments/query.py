"""Ask an environment's own Python for its contents, as a node would start it, within a time-out."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import file_problem
from opsctl.core.files.trusted import who_else_can_write
from opsctl.core.process import Ended, Overdue, find_program, run_program
from opsctl.run.config.schema import RunFile
from trainer.formats.attempt import environment_facts
from trainer.formats.attempt.environment import Environment
from trainer.formats.tolerant import decode

#: For an environment script with modules, and some hundred packages on a slow file system.
TIMEOUT_S = 30.0
#: For importing torch from a cold file system; a longer import hangs.
IMPORT_S = 180.0
#: A batch job gets its owner's login environment and nothing of the submitting shell (--export=NONE).
_OF_THE_ACCOUNT = ("HOME", "USER", "LOGNAME", "PATH", "SHELL", "LANG", "TMPDIR")
#: Printed before the facts, because a script or a module may print other text.
_MARK = "opsctl-environment:"
_LONGEST_CLAUSE = 200
_SOURCE = """
set +eu
source "$1"
shift
printf '\\n%s' "$1"
shift
exec "$@"
"""


@dataclass(frozen=True)
class Asked:
    """The answer of an environment's Python, or why there is none."""

    found: Environment | None = None
    problem: str = ""


def ask(script: Path | None, variables: Mapping[str, str]) -> Asked:
    """Return the facts of the `python` of an environment script, with the run's variables. script None: this Python."""
    ended = _run_python(script, variables, ["-P", environment_facts.__file__], TIMEOUT_S)
    if isinstance(ended, str):
        return Asked(problem=ended)
    found = decode(_after_mark(ended), Environment) if ended.code == 0 else None
    return Asked(found, "" if found is not None else _last_line(ended))


def start_problem(script: Path | None, variables: Mapping[str, str], *words: str, timeout_s: float = TIMEOUT_S) -> str:
    """Return why `python WORDS` fails in an environment, as its last line; empty if it succeeds."""
    ended = _run_python(script, variables, words, timeout_s)
    return ended if isinstance(ended, str) else _last_line(ended) if ended.code else ""


def import_problem(script: Path | None, variables: Mapping[str, str], module: str) -> str:
    """Return why a module cannot be imported in an environment; empty if it can."""
    code = "import importlib, sys; importlib.import_module(sys.argv[1])"
    return start_problem(script, variables, "-P", "-c", code, module, timeout_s=IMPORT_S)


def printed_by_module(
    script: Path | None, variables: Mapping[str, str], words: Sequence[str], timeout_s: float = TIMEOUT_S
) -> str | None:
    """Return the output of `python -m WORDS` in an environment, whatever its exit code; None if it cannot run."""
    ended = _run_python(script, variables, ["-P", "-m", *words], timeout_s)
    return None if isinstance(ended, str) else _after_mark(ended).decode(errors="replace")


def account_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that belong to the account, not to this shell."""
    return {name: environment[name] for name in _OF_THE_ACCOUNT if name in environment}


def why_not_started(file: RunFile, run_file: Path, output: Path) -> str:
    """Return which other users can change the code that the environment runs, in a clause; empty if none can.

    file: expanded. The script and the variables of `[env]` would run as the caller, so only root and the caller may
    control them. The run's group may control what the output folder's owner starts: the owner's jobs run it anyway.
    """
    script = None if file.run.environment is None else Path(file.run.environment)
    paths = [path for path in (script, run_file if file.env else None) if path is not None]

    def who_else(group: int | None) -> str:
        return next(filter(None, (who_else_can_write(path, group) for path in paths if path.exists())), "")

    try:
        why = who_else(None)
        group = _group_of_the_jobs(file, output) if why else None
        return why if group is None else who_else(group)
    except OSError as error:
        return file_problem(error)


def _group_of_the_jobs(file: RunFile, output: Path) -> int | None:
    """Return the group whose members control the caller's jobs of this run: the output folder's."""
    if file.run.publish != "group":
        return None
    try:
        found = output.stat()
    except FileNotFoundError:
        return None  # not shared yet
    is_shared = bool(found.st_mode & stat.S_IWGRP)
    return found.st_gid if is_shared and found.st_uid == os.geteuid() else None


def _run_python(
    script: Path | None, variables: Mapping[str, str], words: Sequence[str], timeout_s: float
) -> Ended | str:
    """Run the script's `python`, or this one. Returns the reason as text if it did not end by itself."""
    command, environment = [sys.executable, *words], {**os.environ, **variables}
    if script is not None:
        assignments = [f"{name}={value}" for name, value in variables.items()]
        bash = find_program("bash", os.environ) or "/bin/bash"
        command = [bash, "--login", "-c", _SOURCE, "opsctl", str(script), _MARK, "env", *assignments, "python", *words]
        environment = account_environment()
    try:
        return run_program(command, environment, timeout_s)
    except Overdue:
        return f"no answer within {timeout_s:g} s"
    except (OSError, ValueError) as error:
        return f"{command[0]} cannot be run: {error}"


def _after_mark(ended: Ended) -> bytes:
    return ended.out.rpartition(_MARK.encode())[2]


def _last_line(ended: Ended) -> str:
    lines = [line.strip() for line in ended.err.decode(errors="replace").splitlines() if line.strip()]
    words = lines[-1][:_LONGEST_CLAUSE] if lines else f"exit code {ended.code} without a message"
    return words if ended.code else f"its Python printed no valid facts: {words}"
