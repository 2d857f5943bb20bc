"""What a shell script is made of: words, and the operators between them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from opsctl.run.init.traced_text import Traced

#: Those that take the next word for themselves.
REDIRECTIONS = frozenset(("<<<", "<<-", "&>>", "<<", ">>", "<&", ">&", ">|", "<>", "&>", "<", ">"))


class Unreadable(ValueError):
    """What no shell could read either; the text names the line."""


@dataclass(frozen=True)
class Part:
    """A stretch of a word: text without its quotes, or an expansion as it is written: `$X`, `${X:-y}`, `$(date)`."""

    traced: Traced
    is_expansion: bool = False
    is_quoted: bool = False


@dataclass
class Word:
    """What blanks and operators end. `elements`: of an array that the word assigns, `NAME=( ... )`."""

    line: int
    parts: list[Part] = field(default_factory=list)
    elements: list[Word] | None = None

    @property
    def plain(self) -> str | None:
        """Its text where nothing of it is quoted or expanded: only such a word can be one of the shell's own."""
        if any(part.is_quoted or part.is_expansion for part in self.parts):
            return None
        return "".join(part.traced.text for part in self.parts)


@dataclass
class Operator:
    """What stands between words, a line's end too.

    `body`: the lines of a here-document, its expansions as parts; of `((`, the arithmetic as it is written.
    """

    text: str
    line: int
    body: Word | None = None


Token = Word | Operator
