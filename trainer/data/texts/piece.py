"""A piece of the input: a few megabytes that are read and encoded at once, by whichever process is free.

How the input is cut follows from it alone, not from how fast anything was read, so that a preparation is gone on with
after as many pieces as are whole.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import msgspec

#: A piece ends where it is complete by itself, with a line, a row or a file, and holds this many bytes or more.
PIECE_BYTES = 2 << 20


class Skipped(msgspec.Struct):
    """What was left out, by reason. not_text: not UTF-8, or holding NUL bytes. examples: names, three at most."""

    empty: int = 0
    not_text: int = 0
    unreadable: int = 0
    examples: list[str] = msgspec.field(default_factory=list)

    def note(self, reason: str, what: str) -> None:
        """Count one under `reason`, a count's name. The first three that are not empty give `what` as an example."""
        setattr(self, reason, getattr(self, reason) + 1)
        if reason != "empty" and len(self.examples) < 3:
            self.examples.append(what)

    def add(self, other: Skipped) -> None:
        """Count what was left out after this."""
        self.empty += other.empty
        self.not_text += other.not_text
        self.unreadable += other.unreadable
        self.examples = [*self.examples, *other.examples][:3]

    def words(self) -> str:
        """`3 empty, 1 not UTF-8 text (a.bin)`, or nothing."""
        named = ((self.empty, "empty"), (self.not_text, "not UTF-8 text"), (self.unreadable, "unreadable"))
        text = ", ".join(f"{count:,} {reason}" for count, reason in named if count)
        return f"{text} ({', '.join(self.examples)})" if self.examples else text


class Readable(Protocol):
    """What every kind of piece can do, in any process."""

    def texts(self, skipped: Skipped) -> list[str]:
        """The documents, none empty; what is left out is counted in `skipped`. Raises DataError for what is wrong."""


@dataclass(frozen=True)
class FileFacts:
    """By which it is known whether a file is still the one that was read."""

    path: str
    size_bytes: int
    changed_ns: int

    @classmethod
    def of(cls, path: str) -> FileFacts:
        """Those of `path` now. Raises OSError."""
        found = os.stat(path)  # noqa: PTH116 -- a name may be any bytes
        return cls(path, found.st_size, found.st_mtime_ns)


def shown(path: str | bytes | os.PathLike[str]) -> str:
    """A path for one line of a terminal, whatever bytes its name holds."""
    text = os.fsdecode(path)
    return text if text.isprintable() else ascii(text)
