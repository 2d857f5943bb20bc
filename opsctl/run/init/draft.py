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


@dataclass
class Draft:
    """The contents of a run file. `tables`: table -> key -> value, in the order in which they are written."""

    tables: dict[str, dict[str, Given]] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    environment_script: list[str] = field(default_factory=list)  # lines of a script next to the run file

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


_ORDER = ("run", "slurm", "array", "trainer", "data", "checkpoints", "retention", "expect", "gpu", "env")


def run_text(draft: Draft, head: Iterable[str]) -> str:
    """Return the run file's text. head: comment lines at its top. The notes are comments at its end."""
    lines = [f"# {printable(line)}".rstrip() for line in head]
    for table in _ORDER:
        values = draft.tables.get(table)
        if not values:
            continue
        lines += ["", f"[{table}]"]
        rows = [(f"{key} = {toml_value(given.value)}", given.remark) for key, given in values.items()]
        # Remarks are aligned in one column, unless a value is too long.
        width = max((len(row) for row, remark in rows if remark and len(row) <= 40), default=0)
        lines += [f"{row:<{width}}  # {remark}" if remark else row for row, remark in rows]
    if draft.notes:
        lines += ["", "# Not taken:"]
        lines += [f"#   {printable(str(note))}" for note in sorted(set(draft.notes))]
    return "\n".join(lines) + "\n"
