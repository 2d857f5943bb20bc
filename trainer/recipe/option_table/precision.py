"""Types and the fp16 loss scale."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, flag, group, option

OPTIONS: tuple[Option, ...] = group(
    "precision",
    flag("--bf16", "bfloat16 weights and activations, fp32 sums of gradients and master weights."),
    flag("--fp16", "float16 with loss scaling; needs a GPU."),
    option("--loss-scale", float, None, "Fixed fp16 loss scale; dynamic when not given.", at_least=0),
    option("--initial-loss-scale", int, 2**32, "First dynamic loss scale, a power of two.", at_least=1),
    option("--min-loss-scale", float, 1.0, "Lowest dynamic loss scale.", at_least=0),
    option(
        "--loss-scale-window",
        int,
        1000,
        "Steps without overflow before the scale doubles.",
        unit="iterations",
        at_least=1,
    ),
    option("--hysteresis", int, 2, "Overflows before the scale halves.", at_least=1),
    flag(
        "--accumulate-allreduce-grads-in-fp32",
        "Add gradients up in fp32, over micro-batches and replicas (bf16 always does).",
    ),
)
