"""Running a program that the reader's own settings name, with a time-out that ends it and what it started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opsctl.core import process


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
    path = process.find_program(words[0], environment) if words else None
    if path is None:
        raise ProgramProblem("no such program: name it with its whole path", has_begun=False)
    handed = stdin.encode(errors="replace")
    try:
        ended = process.run_program([path, *words[1:]], environment, timeout_s, handed, folder="/")
    except process.Overdue:
        raise ProgramProblem(f"no answer within {timeout_s:.0f} s", has_begun=True) from None
    except OSError as error:
        raise ProgramProblem(f"cannot be started: {error.strerror}", has_begun=False) from None
    return Ended(ended.code, ended.out.decode(errors="replace"))
