"""The draft of a run file: each value with its origin, and notes on parts that were not taken. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from opsctl.core.output import printable
from opsctl.run.config.toml_file import toml_value


@dataclass(frozen=True)
class Given:
    """A value of a run file, with a remark on its origin."""

    value: Any
    remark: str = ""


@dataclass(frozen=True, order=True)
class Note:
    """A part of a script that is not taken; `line` 0: of no particular line."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


@dataclass(frozen=True)
class Unset:
    """A key that the user has to set. `example`: a value of the right form, which the run file has in a comment."""

    table: str
    key: str
    example: Any
    why: str

    def __str__(self) -> str:
        return f"[{self.table}] {self.key}: {self.why}"


@dataclass
class Draft:
    """The contents of a run file. `tables`: table -> key -> value, in the order in which they are written."""

    tables: dict[str, dict[str, Given]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    fill_in: list[Note] = field(default_factory=list)  # values of the script that are not known
    unset: list[Unset] = field(default_factory=list)
    environment_script: list[str] = field(default_factory=list)  # lines of a script next to the run file
    files: dict[str, str] = field(default_factory=dict)  # further files next to it: name -> text

    def set(self, table: str, key: str, value: Any, remark: str = "") -> None:
        """Set a value, in place of an earlier one."""
        self.tables.setdefault(table, {})[key] = Given(value, remark)

    def value(self, table: str, key: str) -> Any:
        """Return the value of a key; None if it is not set."""
        given = self.tables.get(table, {}).get(key)
        return None if given is None else given.value

    def note(self, line: int, text: str) -> None:
        """Record a part that is not taken, and why."""
        self.notes.append(Note(line, text))

    def ask(self, table: str, key: str, example: Any, why: str) -> None:
        """Leave a key to the user."""
        self.unset.append(Unset(table, key, example, why))


_ORDER = (
    "run",
    "slurm",
    "array",
    "program",
    "trainer",
    "data",
    "checkpoints",
    "retention",
    "expect",
    "gpu",
    "alerts",
    "env",
)


def run_text(draft: Draft, head: Iterable[str]) -> str:
    """Return the run file's text. head: comment lines at its top. The notes are comments at its end.

    A key that is not set is a comment in its table, with its example.
    """
    lines = [f"# {printable(line)}".rstrip() for line in head]
    for table in _ORDER:
        values = draft.tables.get(table, {})
        if not values and not any(one.table == table for one in draft.unset):
            continue
        lines += ["", f"[{table}]"]
        lines += _command_rows(values) if table == "program" else []
        rows = [
            (f"{key} = {toml_value(one.value)}", one.remark)
            for key, one in values.items()
            if (table, key) != ("program", "command")
        ]
        rows += [(f"# {one.key} = {toml_value(one.example)}", one.why) for one in draft.unset if one.table == table]
        # Remarks are aligned in one column, unless a value is too long.
        width = max((len(row) for row, remark in rows if remark and len(row) <= 40), default=0)
        lines += [f"{row:<{width}}  # {remark}" if remark else row for row, remark in rows]
    if draft.fill_in:
        lines += ["", "# To replace or do by hand:"]
        lines += [f"#   {printable(str(note))}" for note in sorted(set(draft.fill_in))]
    if draft.notes:
        lines += ["", "# Not taken:"]
        lines += [f"#   {printable(str(note))}" for note in sorted(set(draft.notes))]
    return "\n".join(lines) + "\n"


def _command_rows(values: dict[str, Given]) -> list[str]:
    """Return the words of a program's command, with each option on a line of its own."""
    given = values["command"]
    rows: list[list[str]] = [[]]
    for word in given.value:
        if word.startswith("-") and rows[0]:
            rows.append([])
        rows[-1].append(toml_value(word))
    return [f"command = [  # {given.remark}", *(f"    {', '.join(row)}," for row in rows), "]"]
