"""Printing whole lines. Several ranks share one standard output, and `print` writes a line and its end apart."""

from __future__ import annotations

import sys
from collections.abc import Callable


def say(line: str) -> None:
    """One or more lines on standard output in a single write, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say_if(is_told: bool) -> Callable[[str], None]:
    """`say` where `is_told`; else what keeps quiet, for a rank that leaves its lines to another one."""
    return say if is_told else _keep_quiet


def _keep_quiet(_line: str) -> None:
    """Nothing."""


def complain(line: str) -> None:
    """Print a line on standard error, at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """`text` on one line and without what would steer a terminal: each such character as Python writes it."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def failed(text: str, code: int) -> int:
    """Say on one line why a program gives up; returns its exit code."""
    complain(f"opsctl: {printable(' '.join(text.split()))}")
    return code
