"""The table of rules for lines of logs, shipped or a site's own."""

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

#: A shorter word matches almost every line and slows the search down.
_SHORTEST_WORD = 3


class Fault(StrEnum):
    """The party at fault."""

    USER = "user"
    NODE = "node"
    SITE = "site"
    NOBODY = "nobody"


class Role(StrEnum):
    """The role of a line in a failure."""

    ROOT = "root"
    CASCADE = "cascade"
    TEARDOWN = "teardown"


class _Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of a line."""

    name: str
    cause: Cause
    fault: Fault
    alone: Cause | None = None  # the cause if only one of several nodes reports it
    role: Role = Role.ROOT
    placed: bool = True  # the failure happened where the line was written
    otherwise: bool = False  # applies only if no other rule matches the line
    weight: float = 0.5
    say: str = ""


class _WrittenRule(_Meaning, frozen=True, kw_only=True, forbid_unknown_fields=True):
    words: tuple[str, ...] = ()
    words_of: str = ""
    pattern: str = ""
    file: str = ""


class Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The advice for a cause."""

    say: str
    type: tuple[str, ...] = ()  # commands; `{node}` is replaced by the node


class _WrittenTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[dict[str, Any], ...] = ()
    advice: dict[Cause, Advice] = {}


class Rule(_Meaning, frozen=True, kw_only=True):
    """One rule: the lines that it matches, and their meaning."""

    words: tuple[bytes, ...]  # one of them is in the line's bytes
    texts: tuple[str, ...]  # the same as text
    pattern: Pattern | None
    file: Pattern | None  # of a traceback above the line

    def matches(self, text: str) -> re.Match[str] | None:
        """Match the line without its prefix. A rule without a pattern matches every line with one of its words."""
        return _ANYTHING.match(text) if self.pattern is None else self.pattern.search(text)

    @property
    def given_up(self) -> str:
        """Return the reason why a site's pattern was disabled; empty if it is in use."""
        return next((one.given_up for one in (self.pattern, self.file) if isinstance(one, BoundedPattern)), "")


@dataclass(frozen=True)
class Rules:
    """All rules, in order: of equally sure matches the first applies."""

    rows: tuple[Rule, ...]
    advice: dict[Cause, Advice]

    def given_up(self) -> tuple[str, ...]:
        """Return one sentence for each rule that was disabled."""
        return tuple(f"rule {row.name} was disabled: {row.given_up}" for row in self.rows if row.given_up)


_ANYTHING = re.compile("")


@cache
def shipped_rules() -> Rules:
    """Return the table that is part of opsctl."""
    return _load(Path(__file__).with_name("rules.toml"), re.compile)


def site_rules(files: Sequence[Path]) -> Rules:
    """Return the sites' tables, then the shipped one. Raises OpsctlError for an invalid table."""
    tables = [load_rules(path) for path in files]
    ours = shipped_rules()
    advice = dict(ours.advice)
    for table in reversed(tables):
        advice.update(table.advice)
    return Rules(tuple(row for table in (*tables, ours) for row in table.rows), advice)


def load_rules(path: Path) -> Rules:
    """Read a site's table, with bounded patterns. Raises OpsctlError with the file, the rule and the error."""
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
        raise refuse(f"words_of = {row.words_of!r}: expected one of {', '.join(LOST_PEER)}")
    words = (*LOST_PEER.get(row.words_of, ()), *row.words)
    if not words or min(map(len, words)) < _SHORTEST_WORD:
        raise refuse(f"words needs at least one text, each of {_SHORTEST_WORD} characters or more")
    if not 0 < row.weight <= 1:
        raise refuse(f"weight = {row.weight}: expected a number above 0, up to 1")
    try:
        for text in (row.pattern, row.file):
            re.compile(text)
    except re.error as error:
        raise refuse(f"invalid regular expression: {error}") from None
    return Rule(
        **{field: getattr(row, field) for field in _Meaning.__struct_fields__},
        words=tuple(word.encode() for word in words),
        texts=words,
        pattern=made(row.pattern) if row.pattern else None,
        file=made(row.file) if row.file else None,
    )
