"""How long, how much at once, and how a step is computed."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, flag, group, option
from trainer.recipe.recomputation import RECOMPUTE

OPTIONS: tuple[Option, ...] = group(
    "training",
    option(
        "--micro-batch-size",
        int,
        None,
        "Samples one pipeline works on at a time.",
        unit="samples",
        at_least=1,
        below=2**31,
    ),
    option(
        "--global-batch-size",
        int,
        None,
        "Samples of one step; micro-batch x DP when not given.",
        unit="samples",
        at_least=1,
        below=2**31,
    ),
    option(
        "--rampup-batch-size",
        int,
        None,
        "START INCREMENT SAMPLES: grow the batch over so many samples.",
        unit="samples",
        nargs=3,
        at_least=1,
    ),
    option("--train-iters", int, None, "Length of the training.", unit="iterations", at_least=1),
    option("--train-samples", int, None, "Length of the training.", unit="samples", at_least=1),
    option(
        "--train-tokens",
        int,
        None,
        "Length of the training: the step that reaches them is the last; of two lengths the sooner.",
        unit="tokens",
        at_least=1,
    ),
    option(
        "--exit-interval",
        int,
        None,
        "Leave when the iteration is a multiple of this.",
        unit="iterations",
        at_least=1,
    ),
    option(
        "--max-skipped-iterations",
        int,
        100,
        "Leave, without a save, after so many iterations in a row that were skipped or had no finite loss; 0: never.",
        unit="iterations",
        at_least=0,
    ),
    flag("--deterministic", "The same bits from the same start: no faster way whose order of sums may differ."),
    option(
        "--check-replicas-interval",
        int,
        100,
        "Compare what several ranks hold in common this often and before each save; 0: never.",
        unit="iterations",
        at_least=0,
    ),
    option(
        "--exit-after-iters",
        int,
        None,
        "Leave after so many iterations of this start.",
        unit="iterations",
        at_least=1,
    ),
    option(
        "--exit-samples",
        int,
        None,
        "Leave once so many samples are consumed, also when a later start begins there.",
        unit="samples",
        at_least=1,
    ),
    option("--seed", int, 1234, "Seed of weights, dropout and data order.", at_least=0, below=2**32),
    option(
        "--recompute",
        str,
        None,
        "What the backward pass computes again: nothing, attention between its products, or blocks; none by itself.",
        choices=RECOMPUTE,
    ),
    flag("--checkpoint-activations", "The same as --recompute block: of each block only what enters it is kept."),
    flag("--deepspeed-activation-checkpointing", "The same as --recompute block."),
    flag(
        "--partition-activations",
        "Of what enters recomputed blocks each tensor-parallel rank keeps its part, and the backward pass gathers.",
    ),
    flag("--distribute-checkpointed-activations", "The same as --partition-activations."),
    option("--checkpoint-num-layers", int, 1, "Blocks recomputed together.", unit="blocks", at_least=1),
)
