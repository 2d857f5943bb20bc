"""The table of rules: what lines of logs mean, ours and the site's own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.diagnosis.triage.patterns import BoundedPattern, Pattern, PatternProcess
from opsctl.run.attempts.verdict import Cause
from opsctl.run.config.toml_file import read_toml
from trainer.formats.attempt.error_file import LOST_PEER

#: A word that is in every line says nothing, and costs a look at each.
_SHORTEST_WORD = 3


class Fault(StrEnum):
    """Whose it is."""

    USER = "user"
    NODE = "node"
    SITE = "site"
    NOBODY = "nobody"


class Role(StrEnum):
    """What a line can be of a failure."""

    ROOT = "root"
    CASCADE = "cascade"
    TEARDOWN = "teardown"


class _Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What a line means."""

    name: str
    cause: Cause
    fault: Fault
    alone: Cause | None = None  # the cause where one node of several says it
    role: Role = Role.ROOT
    placed: bool = True  # whether the place where it is said is the place where it struck
    otherwise: bool = False  # only where no other rule matches the line
    weight: float = 0.5
    say: str = ""


class _WrittenRule(_Meaning, frozen=True, kw_only=True, forbid_unknown_fields=True):
    words: tuple[str, ...] = ()
    words_of: str = ""
    pattern: str = ""
    file: str = ""


class Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do about a cause."""

    say: str
    type: tuple[str, ...] = ()  # commands; `{node}` in them stands for the node


class _WrittenTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[dict[str, Any], ...] = ()
    advice: dict[Cause, Advice] = {}


class Rule(_Meaning, frozen=True, kw_only=True):
    """One row: which lines it matches, and what they mean."""

    words: tuple[bytes, ...]  # one of them is in the line's bytes
    texts: tuple[str, ...]  # the same as text
    pattern: Pattern | None
    file: Pattern | None  # of a traceback above the line

    def matches(self, text: str) -> re.Match[str] | None:
        """Where the line without its prefix is meant; every line with one of the words where there is no pattern."""
        return _ANYTHING.match(text) if self.pattern is None else self.pattern.search(text)

    @property
    def given_up(self) -> str:
        """Why it means nothing any more: a site's pattern that took too long; else empty."""
        return next((one.given_up for one in (self.pattern, self.file) if isinstance(one, BoundedPattern)), "")


@dataclass(frozen=True)
class Rules:
    """The rows in the order in which they are tried: of those that match a line equally surely the first counts."""

    rows: tuple[Rule, ...]
    advice: dict[Cause, Advice]

    def given_up(self) -> tuple[str, ...]:
        """What was left out of it on the way, each in a sentence."""
        return tuple(f"rule {row.name} was left out: {row.given_up}" for row in self.rows if row.given_up)


_ANYTHING = re.compile("")


@cache
def shipped_rules() -> Rules:
    """The table that comes with the program."""
    return _load(Path(__file__).with_name("rules.toml"), re.compile)


def site_rules(files: Sequence[Path]) -> Rules:
    """The sites' own tables, then the one that is shipped. Raises OpsctlError for a wrong one."""
    tables = [load_rules(path) for path in files]
    ours = shipped_rules()
    advice = dict(ours.advice)
    for table in reversed(tables):
        advice.update(table.advice)
    return Rules(tuple(row for table in (*tables, ours) for row in table.rows), advice)


def load_rules(path: Path) -> Rules:
    """A site's table, its patterns bounded. Raises OpsctlError, which names the file, the rule and what is wrong."""
    process = PatternProcess()
    return _load(path, lambda text: BoundedPattern(text, process))


def _load(path: Path, made: Callable[[str], Pattern]) -> Rules:
    try:
        table = msgspec.convert(read_toml(path, "table of triage rules"), _WrittenTable)
    except msgspec.ValidationError as error:
        raise OpsctlError(f"{path}: {error}") from None
    rows = tuple(_compiled(path, number, row, made) for number, row in enumerate(table.rule, start=1))
    return Rules(rows, dict(table.advice))


def _compiled(path: Path, number: int, written: dict[str, Any], made: Callable[[str], Pattern]) -> Rule:
    """Return a row, ready to match. Raises OpsctlError that names the rule."""
    name = written.get("name", f"number {number}")

    def refuse(why: str) -> OpsctlError:
        return OpsctlError(f"{path}: rule {name}: {why}")

    try:
        row = msgspec.convert(written, _WrittenRule)
    except msgspec.ValidationError as error:
        raise refuse(str(error)) from None
    if row.words_of and row.words_of not in LOST_PEER:
        raise refuse(f"words_of = {row.words_of!r}: there are {', '.join(LOST_PEER)}")
    words = (*LOST_PEER.get(row.words_of, ()), *row.words)
    if not words or min(map(len, words)) < _SHORTEST_WORD:
        raise refuse(f"words has to name at least one text of {_SHORTEST_WORD} characters or more")
    if not 0 < row.weight <= 1:
        raise refuse(f"weight = {row.weight}: allowed is a number above 0, up to 1")
    try:
        for text in (row.pattern, row.file):
            re.compile(text)
    except re.error as error:
        raise refuse(f"no regular expression: {error}") from None
    return Rule(
        **{field: getattr(row, field) for field in _Meaning.__struct_fields__},
        words=tuple(word.encode() for word in words),
        texts=words,
        pattern=made(row.pattern) if row.pattern else None,
        file=made(row.file) if row.file else None,
    )
