"""Errors a user can meet: one line that says what was found, where, and what to do; each with its exit code.

`opsctl.cli.main` is the one place that turns them into that line on stderr and an exit code.
"""

from __future__ import annotations


class OpsctlError(Exception):
    """Something failed or was refused: exit code 1."""

    exit_code = 1


class RunFileError(OpsctlError):
    """The run file, or what it asks for, cannot be: exit code 2."""

    exit_code = 2


class UsageError(OpsctlError):
    """The command was called in a way that cannot work: exit code 2."""

    exit_code = 2


class SlurmError(OpsctlError):
    """Slurm answered with a refusal; its own words are in the text."""


class SlurmUnreachable(SlurmError):
    """Slurm did not answer in time or at all. Nothing is known then: never read it as "not running"."""


class SlurmUnasked(SlurmUnreachable):
    """Slurm was not asked, so nothing was done: the command knows no cluster here, or is missing."""


class SlurmMissing(SlurmUnasked):
    """A Slurm command is not installed here."""


def file_problem(error: OSError, where: object = None) -> str:
    """Return `PATH: No space left on device`; `where` names the place of an error without a file."""
    place = error.filename or where
    return f"{place}: {error.strerror or error}" if place else str(error.strerror or error)
