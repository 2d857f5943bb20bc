"""The first weights."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, flag, group, option

OPTIONS: tuple[Option, ...] = group(
    "initialization",
    option("--init-method-std", float, 0.02, "Standard deviation of the initial weights.", at_least=0),
    flag(
        "--use-cpu-initialization",
        "Draw initial weights on the CPU.",
        notice="initial weights are always drawn on the CPU",
    ),
)
