"""A job file's own `#SBATCH` lines: which of them a job of the pseudo-cron may have. Pure."""

from __future__ import annotations

import difflib

from opsctl.core.errors import OpsctlError
from opsctl.slurm.sbatch_lines import WITHOUT_VALUE, directives, header

#: What a job file may say itself; all else is refused by name.
ALLOWED = frozenset(
    (
        *("account", "chdir", "constraint", "core-spec", "cpus-per-task", "error", "exclude", "exclusive", "hint"),
        *("input", "job-name", "licenses", "mail-type", "mail-user", "mem", "mem-per-cpu", "nice", "nodelist"),
        *("nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "oversubscribe", "partition", "qos"),
        *("reservation", "threads-per-core", "time", "time-min", "tmp"),
    )
)
#: What options begin with that ask for GPUs; sbatch takes abbreviations too.
_FOR_GPUS = ("gpu", "gre", "tres")
#: Why some are refused that a person may well write.
_WHY = {
    "array": "one tick starts one job",
    "begin": "the grid says when it starts",
    "comment": "the comment says which run it is",
    "dependency": "jobs of a tick do not wait for each other",
    "export": "it gets its owner's login environment",
    "hold": "nobody would release it",
    "wait": "a tick waits for none",
}

#: A comment line of ours with what a job needs beside Slurm's options.
_OURS = "#OPSCTL"
_INTERNET = "internet"

Directives = dict[str, str | None]


def own_directives(text: str) -> Directives:
    """Option -> value (None for one without) of the file's `#SBATCH` lines, as sbatch reads them.

    Raises OpsctlError for an option that is not a cron job's to set, GPUs among them, and for a file without `#!`.
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!") or not lines[0][2:].strip():
        raise OpsctlError("the first line is not #! and the program that runs it, like #!/bin/bash")
    found: Directives = {}
    try:
        for one in directives(text):
            _check(one.name, one.value)
            found[one.name] = one.value
    except ValueError as error:
        raise OpsctlError(str(error)) from None
    return found


def needs_internet(text: str) -> bool:
    """Whether a line `#OPSCTL internet` stands before the first command. Raises OpsctlError for any other word."""
    words = [word for _, line in header(text) if line.startswith(_OURS) for word in line.removeprefix(_OURS).split()]
    unknown = next((word for word in words if word != _INTERNET), None)
    if unknown is not None:
        raise OpsctlError(f"{_OURS} {unknown}: the one word that may stand there is {_INTERNET}")
    return bool(words)


def interpreter_of(text: str) -> list[str]:
    """The command of the first line: a program and at most one argument, as the kernel takes it."""
    return text.splitlines()[0][2:].strip().split(None, 1)


def _check(name: str, value: str | None) -> None:
    shown = name if name.startswith("-") else f"--{name}"
    if name.startswith(_FOR_GPUS):
        raise OpsctlError(f"#SBATCH {shown}{'=' + value if value else ''}: a cron job gets no GPU: leave it out")
    if name not in ALLOWED:
        near = difflib.get_close_matches(name, sorted(ALLOWED), 1)
        why = _WHY.get(name) or (f"did you mean --{near[0]}?" if near else "it is not a cron job's to set")
        raise OpsctlError(f"#SBATCH {shown}: {why}; allowed are {', '.join(sorted(ALLOWED))}")
    if value is None and name not in WITHOUT_VALUE:
        raise OpsctlError(f"#SBATCH {shown}: has no value")
    if value is not None and not value.isprintable():
        raise OpsctlError(f"#SBATCH {shown}: has a control character in its value")
