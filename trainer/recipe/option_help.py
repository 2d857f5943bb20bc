"""The option table as text: `python -m trainer.recipe.option_help`."""

from __future__ import annotations

from collections.abc import Iterator

from trainer.recipe.option_table import OPTIONS, Option


def help_text() -> str:
    """Return all options by group, for a terminal."""
    lines = ["usage: python -m trainer.pretrain_gpt --num-layers L --hidden-size H ...  (one launcher process per GPU)"]
    for group, options in options_by_group():
        lines += ["", f"{group}:"]
        for option in options:
            lines += [f"  {option.name} {values_of(option)}".rstrip(), f"      {described(option)}"]
    return "\n".join(lines)


def options_by_group() -> Iterator[tuple[str, list[Option]]]:
    """Yield each group with its options."""
    for group in dict.fromkeys(option.group for option in OPTIONS):
        yield group, [option for option in OPTIONS if option.group == group]


def values_of(option: Option) -> str:
    """Return the values that an option takes; empty for a flag."""
    if option.type is bool:
        return ""
    if option.choices:
        return "{" + ", ".join(str(choice) for choice in option.choices) + "}"
    one = (option.unit or option.type.__name__).upper().replace(" ", "_")
    if isinstance(option.nargs, int):
        return " ".join([one] * option.nargs)
    return f"{one} ..." if option.nargs == "+" else one


def described(option: Option) -> str:
    """Return the help of an option with its default."""
    default = "" if option.default is None or option.type is bool else f" Default {option.default}."
    return option.help + default + (f" Changes nothing: {option.notice}." if option.notice else "")


if __name__ == "__main__":
    print(help_text())
