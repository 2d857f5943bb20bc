"""Text that knows, of each character, the line of the script that it was written on. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Traced:
    """Text, and of each character its line, which it keeps on its way through variables. Lines count from 1."""

    text: str = ""
    lines: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str, line: int = 1) -> Traced:
        """`text` that begins on `line` and goes on from there with each line end."""
        lines = []
        for character in text:
            lines.append(line)
            line += character == "\n"
        return cls(text, tuple(lines))

    @classmethod
    def on(cls, text: str, line: int) -> Traced:
        """`text`, all of it on `line`."""
        return cls(text, (line,) * len(text))

    @property
    def line(self) -> int:
        """Where it begins; 0 of no text."""
        return self.lines[0] if self.lines else 0

    def __add__(self, other: Traced) -> Traced:
        return Traced(self.text + other.text, self.lines + other.lines)

    def __getitem__(self, part: slice) -> Traced:
        return Traced(self.text[part], self.lines[part])

    def __len__(self) -> int:
        return len(self.text)


def joined(parts: Iterable[Traced], between: str = "") -> Traced:
    """The parts one after another, each but the first with `between` before it, on that part's line."""
    text, lines = [], list[int]()
    for number, part in enumerate(parts):
        before = between if number else ""
        text += [before, part.text]
        lines += [part.line] * len(before) + list(part.lines)
    return Traced("".join(text), tuple(lines))
