"""A batch script's `#SBATCH` lines, read as sbatch reads them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

_MARK = "#SBATCH"
_SHORT = {
    **{"A": "account", "C": "constraint", "D": "chdir", "G": "gpus", "J": "job-name", "L": "licenses", "N": "nodes"},
    **{"a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error", "i": "input", "n": "ntasks"},
    **{"o": "output", "p": "partition", "q": "qos", "s": "oversubscribe", "t": "time", "w": "nodelist", "x": "exclude"},
}
#: Further names of an option.
_SAME = {"tasks-per-node": "ntasks-per-node"}
#: Options that may stand alone.
WITHOUT_VALUE = frozenset(("exclusive", "oversubscribe"))


@dataclass(frozen=True)
class Directive:
    """One option; `name` is the long one without dashes (a short one that is not known: as it is written)."""

    name: str
    value: str | None  # None: it stands alone
    line: int  # from 1


def directives(text: str) -> Iterator[Directive]:
    """Those before the first command, in order; the last of a name counts. Raises ValueError for what is no option."""
    for number, line in header(text):
        if line.startswith(_MARK):
            for name, value in _options(line.removeprefix(_MARK)):
                yield Directive(name, value, number)


def header(text: str) -> Iterator[tuple[int, str]]:
    """Return the numbered lines between the first one and the first command: sbatch reads its options only there."""
    numbered = enumerate(text.splitlines()[1:], 2)
    return takewhile(lambda one: not one[1].strip() or one[1].startswith("#"), numbered)


def _options(line: str) -> Iterator[tuple[str, str | None]]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise ValueError(f"{_MARK}{line}: {error}") from None
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in WITHOUT_VALUE and words and not words[0].startswith("-"):
                equals, value = "=", words.pop(0)
            yield _SAME.get(name, name), value if equals else None
        elif len(word) > 1 and word[0] == "-":
            name = _SHORT.get(word[1], word[:2])
            rest: str | None = word[2:] or None
            if rest is None and name not in WITHOUT_VALUE and words and not words[0].startswith("-"):
                rest = words.pop(0)
            yield name, rest
        else:
            raise ValueError(f"{_MARK}: {word!r} is no option")
