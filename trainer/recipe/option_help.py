"""The option table as text: `python -m trainer.recipe.option_help`, with --markdown for docs/trainer-options.md."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from trainer.recipe.option_table import OPTIONS, REFUSED, Option


def help_text() -> str:
    """All options by group, for a terminal."""
    lines = ["usage: python -m trainer.pretrain_gpt --num-layers L --hidden-size H ...  (one launcher process per GPU)"]
    for group, options in _by_group():
        lines += ["", f"{group}:"]
        for option in options:
            lines += [f"  {option.name} {_values(option)}".rstrip(), f"      {_sentence(option)}"]
    return "\n".join(lines)


def markdown() -> str:
    """All options as a page, with the run-file table each belongs to, and what is refused."""
    lines = [
        "# Trainer options",
        "",
        "Made from `trainer/recipe/option_table/` by `python -m trainer.recipe.option_help --markdown`.",
        "In a run file an option is written with `_` for `-` in the table named here; those of `opsctl` are set by",
        "opsctl itself.",
    ]
    for group, options in _by_group():
        lines += ["", f"## {group.capitalize()}", "", "| option | values | table | |", "|---|---|---|---|"]
        for option in options:
            values = _values(option).replace("|", r"\|")
            lines.append(f"| `{option.name}` | {values} | {option.table} | {_sentence(option)} |")
    lines += ["", "## Refused", "", "| option | reason |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in REFUSED.items()]
    return "\n".join(lines)


def _by_group() -> Iterator[tuple[str, list[Option]]]:
    for group in dict.fromkeys(option.group for option in OPTIONS):
        yield group, [option for option in OPTIONS if option.group == group]


def _values(option: Option) -> str:
    if option.type is bool:
        return ""
    if option.choices:
        return "{" + ", ".join(str(choice) for choice in option.choices) + "}"
    one = (option.unit or option.type.__name__).upper().replace(" ", "_")
    if isinstance(option.nargs, int):
        return " ".join([one] * option.nargs)
    return f"{one} ..." if option.nargs == "+" else one


def _sentence(option: Option) -> str:
    default = "" if option.default is None or option.type is bool else f" Default {option.default}."
    return option.help + default + (f" Changes nothing: {option.notice}." if option.notice else "")


if __name__ == "__main__":
    print(markdown() if "--markdown" in sys.argv[1:] else help_text())
