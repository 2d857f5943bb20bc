"""The table of rules: what lines of logs mean, ours and the site's own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from opsctl.attempts.verdict import Cause
from opsctl.errors import OpsctlError
from opsctl.runs.toml_file import read_toml

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


class _WrittenRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    words: tuple[str, ...]
    cause: Cause
    fault: Fault
    pattern: str = ""
    file: str = ""
    role: Role = Role.ROOT
    placed: bool = True
    otherwise: bool = False
    weight: float = 0.5
    say: str = ""


class Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do about a cause."""

    say: str
    type: tuple[str, ...] = ()  # commands; `{node}` in them stands for the node


class _WrittenTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[_WrittenRule, ...] = ()
    advice: dict[Cause, Advice] = {}


@dataclass(frozen=True)
class Rule:
    """One row: which lines it means, and what they mean."""

    name: str
    words: tuple[bytes, ...]  # one of them is in the line's bytes
    texts: tuple[str, ...]  # the same as text
    pattern: re.Pattern[str] | None
    file: re.Pattern[str] | None  # of a traceback above the line
    cause: Cause
    fault: Fault
    role: Role
    placed: bool  # whether where it was said is where it struck
    otherwise: bool  # only where no other means the line
    weight: float
    say: str

    def matches(self, text: str) -> re.Match[str] | None:
        """Where the line without its prefix is meant; every line with one of the words where there is no pattern."""
        return _ANYTHING.match(text) if self.pattern is None else self.pattern.search(text)


@dataclass(frozen=True)
class Rules:
    """The rows in the order in which they are tried: of those that match a line equally surely the first counts."""

    rows: tuple[Rule, ...]
    advice: dict[Cause, Advice]


_ANYTHING = re.compile("")


@cache
def shipped_rules() -> Rules:
    """The table that comes with the program."""
    return load_rules(Path(__file__).with_name("rules.toml"))


def site_rules(files: Sequence[Path]) -> Rules:
    """The sites' own tables, then the one that is shipped. Raises OpsctlError for a wrong one."""
    tables = [load_rules(path) for path in files]
    ours = shipped_rules()
    advice = dict(ours.advice)
    for table in reversed(tables):
        advice.update(table.advice)
    return Rules(tuple(row for table in (*tables, ours) for row in table.rows), advice)


def load_rules(path: Path) -> Rules:
    """One file's table. Raises OpsctlError, which names the file, the rule and what is wrong with it."""
    written = read_toml(path, "table of triage rules")
    _refuse_by_name(path, written)
    try:
        table = msgspec.convert(written, _WrittenTable)
    except msgspec.ValidationError as error:
        raise OpsctlError(f"{path}: {error}") from None
    return Rules(tuple(_compiled(path, row) for row in table.rule), dict(table.advice))


def _refuse_by_name(path: Path, written: dict[str, Any]) -> None:
    """Name the rule that does not fit: of a table of many its number says little."""
    rows = written.get("rule", [])
    for number, row in enumerate(rows if isinstance(rows, list) else [], start=1):
        try:
            msgspec.convert(row, _WrittenRule)
        except msgspec.ValidationError as error:
            name = row.get("name", f"number {number}") if isinstance(row, dict) else f"number {number}"
            raise OpsctlError(f"{path}: rule {name}: {error}") from None


def _compiled(path: Path, row: _WrittenRule) -> Rule:
    def refuse(why: str) -> OpsctlError:
        return OpsctlError(f"{path}: rule {row.name}: {why}")

    if not row.words or min(map(len, row.words)) < _SHORTEST_WORD:
        raise refuse(f"words has to name at least one text of {_SHORTEST_WORD} characters or more")
    if not 0 < row.weight <= 1:
        raise refuse(f"weight = {row.weight}: allowed is a number above 0, up to 1")
    try:
        pattern, file = (re.compile(text) if text else None for text in (row.pattern, row.file))
    except re.error as error:
        raise refuse(f"no regular expression: {error}") from None
    return Rule(
        name=row.name,
        words=tuple(word.encode() for word in row.words),
        texts=row.words,
        pattern=pattern,
        file=file,
        cause=row.cause,
        fault=row.fault,
        role=row.role,
        placed=row.placed,
        otherwise=row.otherwise,
        weight=row.weight,
        say=row.say,
    )
