"""One option: its name, type, default, unit, bounds and help; and short ways to write rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Option:
    """One option. `type` is the type of one value: int, float, str or bool (bool: a flag without a value).

    nargs: None for one value, a number for exactly so many, "+" for one or more. Both bounds apply to each value.
    notice: printed once if the option is given, because it has no effect here.
    """

    name: str
    type: type
    default: Any
    help: str
    group: str
    table: str = "trainer"
    unit: str = ""
    choices: tuple[Any, ...] = ()
    nargs: int | str | None = None
    at_least: float | None = None
    below: float | None = None
    notice: str = ""

    @property
    def key(self) -> str:
        """The option's name in a run file and as an attribute: `num_layers` for `--num-layers`."""
        return self.name.removeprefix("--").replace("-", "_")


def group(name: str, *rows: dict[str, Any], table: str = "trainer") -> tuple[Option, ...]:
    """Return the options of one group of the help, in order. `table` is the default for rows without one."""
    return tuple(Option(group=name, **{"table": table, **row}) for row in rows)


def option(name: str, type_: type, default: Any, help_: str, unit: str = "", **more: Any) -> dict[str, Any]:
    """Return a row of a group."""
    return {"name": name, "type": type_, "default": default, "help": help_, "unit": unit, **more}


def count(name: str, help_: str, unit: str = "", default: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a row for a whole number of at least 1, or as `more` says."""
    return option(name, int, default, help_, unit, **{"at_least": 1, **more})


def number(name: str, help_: str, unit: str = "", default: float | None = None, **more: Any) -> dict[str, Any]:
    """Return a row for a number."""
    return option(name, float, default, help_, unit, **more)


def text(name: str, help_: str, unit: str = "", **more: Any) -> dict[str, Any]:
    """Return a row for a text without a default."""
    return option(name, str, None, help_, unit, **more)


def choice(name: str, choices: tuple[str, ...], default: str | None, help_: str, **more: Any) -> dict[str, Any]:
    """Return a row for one of several words."""
    return option(name, str, default, help_, choices=choices, **more)


def flag(name: str, help_: str, **more: Any) -> dict[str, Any]:
    """Return a row for a flag."""
    return option(name, bool, False, help_, **more)
