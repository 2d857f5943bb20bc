"""Options of the training: its length, optimizer, regularization, spikes, and the schedule of the learning rate."""

from __future__ import annotations

from trainer.recipe.learning_rate import COOLDOWN_STYLES, DECAY_STYLES
from trainer.recipe.model_options import RECOMPUTE
from trainer.recipe.option_table.row import Option, count, flag, group, option
from trainer.recipe.spike_guard import ACTIONS, LEAST, TOGETHER

TRAINING: tuple[Option, ...] = group(
    "training",
    count("--micro-batch-size", "Samples of a forward pass on one pipeline.", "samples"),
    count("--global-batch-size", "Samples of one step; micro-batch x DP when not given.", "samples"),
    option(
        "--rampup-batch-size",
        int,
        None,
        "START INCREMENT SAMPLES: grow the batch over so many samples.",
        "samples",
        nargs=3,
        at_least=1,
    ),
    count("--train-iters", "Length of the training.", "iterations"),
    count("--train-samples", "Length of the training.", "samples"),
    count("--train-tokens", "Length of the training; it ends with the step that reaches them.", "tokens"),
    count("--exit-interval", "Leave when the iteration is a multiple of this.", "iterations"),
    count(
        "--max-skipped-iterations",
        "End after so many skipped or non-finite iterations in a row, without a save; 0: never.",
        "iterations",
        default=100,
        at_least=0,
    ),
    flag("--deterministic", "Use only operations with a fixed order of sums."),
    count(
        "--check-replicas-interval",
        "Compare the ranks' common weights this often and before saves; 0: never.",
        "iterations",
        default=100,
        at_least=0,
    ),
    count("--exit-after-iters", "Leave after so many iterations of this start.", "iterations"),
    count("--exit-samples", "Leave once so many samples are consumed.", "samples"),
    count("--seed", "Seed of weights, dropout and data order.", default=1234, at_least=0, below=2**32),
    option("--recompute", str, None, "What the backward pass computes again; none by default.", choices=RECOMPUTE),
    flag("--checkpoint-activations", "The same as --recompute block."),
    flag("--deepspeed-activation-checkpointing", "The same as --recompute block."),
    flag("--partition-activations", "Split the inputs of recomputed blocks over tensor-parallel ranks."),
    flag("--distribute-checkpointed-activations", "The same as --partition-activations."),
    count("--checkpoint-num-layers", "Blocks recomputed together.", "blocks", default=1),
)

REGULARIZATION: tuple[Option, ...] = group(
    "regularization",
    option("--attention-dropout", float, 0.1, "Dropout of the attention's probabilities.", at_least=0, below=1),
    option("--hidden-dropout", float, 0.1, "Dropout of embeddings, attention and MLP outputs.", at_least=0, below=1),
    option("--weight-decay", float, 0.01, "Weight decay, decoupled with adam; none on biases and norms.", at_least=0),
    option("--clip-grad", float, 1.0, "Largest norm of the gradient; 0: no clipping.", at_least=0),
    option("--optimizer", str, "adam", "AdamW, or SGD with momentum.", choices=("adam", "sgd")),
    option("--adam-beta1", float, 0.9, "Adam's decay of the first moment.", at_least=0, below=1),
    option("--adam-beta2", float, 0.999, "Adam's decay of the second moment.", at_least=0, below=1),
    option("--adam-eps", float, 1e-08, "Added to Adam's denominator.", at_least=0),
    option("--sgd-momentum", float, 0.9, "SGD's momentum.", at_least=0, below=1),
)

LEARNING_RATE: tuple[Option, ...] = group(
    "learning rate",
    option("--lr", float, None, "Highest learning rate.", at_least=0),
    option("--min-lr", float, 0.0, "Lowest learning rate after the warm-up.", at_least=0),
    option(
        "--lr-decay-style",
        str,
        "linear",
        "Shape of the decay; WSD: warm-up, stable, decay at the end.",
        choices=DECAY_STYLES,
    ),
    count("--lr-decay-iters", "Length of the decay; the whole training when not given.", "iterations"),
    count("--lr-decay-samples", "Length of the decay; the whole training when not given.", "samples"),
    count("--lr-decay-tokens", "Length of the decay; the whole training when not given.", "tokens"),
    count("--lr-wsd-decay-iters", "Length of WSD's decay.", "iterations"),
    count("--lr-wsd-decay-samples", "Length of WSD's decay.", "samples"),
    option("--lr-wsd-decay-style", str, "exponential", "Shape of WSD's decay.", choices=COOLDOWN_STYLES),
    option("--lr-warmup-fraction", float, None, "Warm-up as a share of the decay's length.", at_least=0, below=1),
    count("--lr-warmup-iters", "Length of the linear warm-up.", "iterations", default=0, at_least=0),
    count("--lr-warmup-samples", "Length of the linear warm-up.", "samples", default=0, at_least=0),
    count("--lr-warmup-tokens", "Length of the linear warm-up.", "tokens", default=0, at_least=0),
    count(
        "--lr-cooldown-at-samples",
        "Leave the schedule at this sample and decrease the rate to --min-lr.",
        "samples",
        at_least=0,
    ),
    count("--lr-cooldown-samples", "Length of that cooldown; up to the training's end by default.", "samples"),
    option("--lr-cooldown-style", str, "linear", "Shape of that cooldown.", choices=COOLDOWN_STYLES),
    flag("--override-lr-scheduler", "Where a checkpoint's schedule differs, take this command line's."),
    flag("--use-checkpoint-lr-scheduler", "Where a checkpoint's schedule differs, take the checkpoint's."),
)

SPIKES: tuple[Option, ...] = group(
    "spikes",
    option(
        "--train-range-to-skip",
        int,
        None,
        "FIRST LAST FIRST LAST ...: iterations to skip, both included; all counters move on.",
        "iterations",
        nargs="+",
        at_least=1,
    ),
    option("--skip-train-iteration-range", str, None, "FIRST-LAST FIRST-LAST ...: the same.", "iterations", nargs="+"),
    option(
        "--log-tokens", str, None, "FIRST:LAST: print the tokens of every sample of these iterations.", "iterations"
    ),
    option(
        "--spike-guard",
        str,
        None,
        "Actions for an unusual loss or gradient norm: log, skip the update, rerun the step, rollback.",
        nargs="+",
        choices=ACTIONS,
    ),
    option(
        "--spike-guard-deviations",
        float,
        8.0,
        "Standard deviations above the median from which a value is unusual.",
        at_least=1,
    ),
    option(
        "--spike-guard-window",
        int,
        128,
        "Newest usual iterations that define the usual values.",
        "iterations",
        at_least=LEAST,
        below=1_000_000,
    ),
    count(
        "--spike-guard-patience",
        "Unusual iterations, close together, that cause a rollback.",
        "iterations",
        default=3,
        below=TOGETHER + 1,
    ),
    count(
        "--spike-guard-margin",
        "Iterations around unusual ones that are skipped with them after a rollback.",
        "iterations",
        default=10,
        at_least=0,
    ),
    count("--spike-guard-rollbacks", "Most rollbacks in the whole training.", default=2, at_least=0),
    option(
        "--spike-drill",
        str,
        None,
        "ITERATION or ITERATION:KIND: cause a spike there; kinds: data (several iterations), hardware (once).",
    ),
)
