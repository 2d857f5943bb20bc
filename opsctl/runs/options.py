"""The trainer's options as the run file's `[trainer]`, `[data]` and `[checkpoints]` tables see them: names with `_` for `-`."""

from __future__ import annotations

from typing import Any


def option_names(table: str) -> tuple[str, ...] | None:
    """The keys that `[table]` may have; None while any may."""
    return None


def option_problem(table: str, key: str, value: Any) -> str | None:
    """What is wrong with `key = value`, or None."""
    return None


def arguments_of(mapping: dict[str, Any]) -> list[str]:
    """The command line that says the same as `mapping`: true is a flag, false is nothing, a list is several values."""
    arguments = []
    for key, value in mapping.items():
        if value is False:
            continue
        arguments.append("--" + key.replace("_", "-"))
        if value is True:
            continue
        arguments += [str(item) for item in value] if isinstance(value, list) else [str(value)]
    return arguments
