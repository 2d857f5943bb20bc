"""What is evaluated when."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, flag, group, option

OPTIONS: tuple[Option, ...] = group(
    "evaluation",
    option("--eval-interval", int, 1000, "Iterations between evaluations.", unit="iterations", at_least=1),
    option("--eval-iters", int, 100, "Batches of one evaluation; 0 never evaluates.", unit="iterations", at_least=0),
    flag(
        "--eval-only",
        "Evaluate --load's checkpoint on each validation and test set; train nothing.",
        table="opsctl",
    ),
    flag("--no-train", "The same as --eval-only.", table="opsctl"),
    flag("--skip-train", "The same as --eval-only, as Megatron-LM names it.", table="opsctl"),
)
