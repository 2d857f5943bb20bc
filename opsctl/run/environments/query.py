"""What is in an environment, told by its own Python: sourced as a node would, in a process with a time-out."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.process import Ended, Overdue, find_program, run_program
from trainer.formats.attempt import environment_facts
from trainer.formats.attempt.environment import Environment
from trainer.formats.tolerant import decode

#: For an environment script with its modules, and for Python to look at some hundred packages on a slow file system.
TIMEOUT_S = 30.0
#: Every file of every package is read: some gigabytes from a cold network file system.
READ_FILES_S = 1800.0
#: torch is read from a cold file system; what needs longer hangs.
IMPORT_S = 180.0
#: A batch job begins with its owner's login environment and nothing of the shell that submitted it (--export=NONE).
_OF_THE_ACCOUNT = ("HOME", "USER", "LOGNAME", "PATH", "SHELL", "LANG", "TMPDIR")
#: What stands before the facts: a script, or a module, may print whatever it likes.
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
    """What an environment's Python said, or why that is not to be had."""

    found: Environment | None = None
    problem: str = ""


def ask_script(script: Path, variables: Mapping[str, str], timeout_s: float = TIMEOUT_S, *options: str) -> Asked:
    """Return what the `python` of an environment script sees, with the run's variables, as a job would start it.

    options: of `trainer.formats.attempt.environment_facts`.
    """
    command = ["--login", "-c", _SOURCE, "opsctl", str(script), _MARK, "env", *_assignments(variables), "python"]
    return _asked("bash", [*command, "-P", environment_facts.__file__, *options], account_environment(), timeout_s)


def ask_python(python: str, variables: Mapping[str, str], timeout_s: float = TIMEOUT_S, *options: str) -> Asked:
    """Return what this interpreter sees in the present environment, with some variables on top.

    options: of `trainer.formats.attempt.environment_facts`.
    """
    command = ["-c", 'printf %s "$1"; shift; exec "$@"', "opsctl", _MARK, python, "-P", environment_facts.__file__]
    return _asked("bash", [*command, *options], {**os.environ, **variables}, timeout_s)


def source_script(script: Path, timeout_s: float = TIMEOUT_S) -> str:
    """Why an environment script cannot be sourced, or has no `python`; empty where all is well."""
    command = ["--login", "-c", _SOURCE, "opsctl", str(script), _MARK, "python", "-c", "pass"]
    said = _run("bash", command, account_environment(), timeout_s)
    return said if isinstance(said, str) else ("" if said.code == 0 else _last_line(said))


def import_problem(script: Path | None, variables: Mapping[str, str], module: str, timeout_s: float = IMPORT_S) -> str:
    """Why a module cannot be imported in an environment, in Python's own last words; empty where it can."""
    words = ["-P", "-c", "import importlib, sys; importlib.import_module(sys.argv[1])", module]
    said = _run_python(script, variables, words, timeout_s)
    return said if isinstance(said, str) else ("" if said.code == 0 else _last_line(said))


def printed_by_module(
    script: Path | None, variables: Mapping[str, str], words: Sequence[str], timeout_s: float = TIMEOUT_S
) -> str | None:
    """What `python -m WORDS` prints in an environment, whatever its exit code; None where it cannot be run."""
    said = _run_python(script, variables, ["-P", "-m", *words], timeout_s)
    if isinstance(said, str):
        return None
    return said.out.rpartition(_MARK.encode())[2].decode(errors="replace")


def account_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of `environment` what is the account's, not this shell's."""
    return {name: environment[name] for name in _OF_THE_ACCOUNT if name in environment}


def _assignments(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def _run_python(
    script: Path | None, variables: Mapping[str, str], words: Sequence[str], timeout_s: float
) -> Ended | str:
    """The script's `python`, or this very one; after _MARK where there is a script."""
    if script is None:
        return _run(sys.executable, [*words], {**os.environ, **variables}, timeout_s)
    sourced = ["--login", "-c", _SOURCE, "opsctl", str(script), _MARK, "env", *_assignments(variables), "python"]
    return _run("bash", [*sourced, *words], account_environment(), timeout_s)


def _asked(program: str, words: list[str], environment: Mapping[str, str], timeout_s: float) -> Asked:
    said = _run(program, words, environment, timeout_s)
    if isinstance(said, str):
        return Asked(problem=said)
    found = decode(said.out.rpartition(_MARK.encode())[2], Environment) if said.code == 0 else None
    return Asked(found, "" if found is not None else _last_line(said))


def _run(program: str, words: list[str], environment: Mapping[str, str], timeout_s: float) -> Ended | str:
    """How it ended, or why it did not."""
    path = find_program(program, environment)
    if path is None:
        return f"there is no {program}"
    try:
        return run_program([path, *words], environment, timeout_s)
    except Overdue:
        return f"no answer within {timeout_s:g} s"
    except (OSError, ValueError) as error:
        return f"{program} cannot be run: {error}"


def _last_line(said: Ended) -> str:
    lines = [line.strip() for line in said.err.decode(errors="replace").splitlines() if line.strip()]
    words = lines[-1][:_LONGEST_CLAUSE] if lines else f"exit code {said.code} without a word"
    return words if said.code else f"its Python told nothing that can be read: {words}"
