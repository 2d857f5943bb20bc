"""Printing whole lines. Several ranks share one standard output, and `print` writes a line and its end apart."""

from __future__ import annotations

import sys


def say(line: str) -> None:
    """One or more lines on standard output in a single write, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def complain(line: str) -> None:
    """The same on standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
