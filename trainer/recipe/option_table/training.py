"""Options of the training: its length, optimizer, regularization, spikes, and the schedule of the learning rate."""

from __future__ import annotations

from trainer.recipe.learning_rate import DECAY_STYLES, WSD_DECAY_STYLES
from trainer.recipe.model_options import RECOMPUTE
from trainer.recipe.option_table.row import Option, choice, count, flag, group, number, option, text
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
    choice("--recompute", RECOMPUTE, None, "What the backward pass computes again; none by default."),
    flag("--checkpoint-activations", "The same as --recompute block."),
    flag("--deepspeed-activation-checkpointing", "The same as --recompute block."),
    flag("--partition-activations", "Split the inputs of recomputed blocks over tensor-parallel ranks."),
    flag("--distribute-checkpointed-activations", "The same as --partition-activations."),
    count("--checkpoint-num-layers", "Blocks recomputed together.", "blocks", default=1),
)

REGULARIZATION: tuple[Option, ...] = group(
    "regularization",
    number(
        "--z-loss-coeff",
        "Weight of the mean of log(sum(exp(logits)))^2 in the gradients; the printed loss is without it.",
        default=0.0,
        at_least=0,
    ),
    number("--attention-dropout", "Dropout of the attention's probabilities.", default=0.1, at_least=0, below=1),
    number("--hidden-dropout", "Dropout of embeddings, attention and MLP outputs.", default=0.1, at_least=0, below=1),
    number("--weight-decay", "Weight decay, decoupled with adam; none on biases and norms.", default=0.01, at_least=0),
    number("--clip-grad", "Largest norm of the gradient; 0: no clipping.", default=1.0, at_least=0),
    choice("--optimizer", ("adam", "sgd"), "adam", "AdamW, or SGD with momentum."),
    number("--adam-beta1", "Adam's decay of the first moment.", default=0.9, at_least=0, below=1),
    number("--adam-beta2", "Adam's decay of the second moment.", default=0.999, at_least=0, below=1),
    number("--adam-eps", "Added to Adam's denominator.", default=1e-08, at_least=0),
    number("--sgd-momentum", "SGD's momentum.", default=0.9, at_least=0, below=1),
)

LEARNING_RATE: tuple[Option, ...] = group(
    "learning rate",
    number("--lr", "Highest learning rate.", at_least=0),
    number("--min-lr", "Lowest learning rate after the warm-up.", default=0.0, at_least=0),
    choice("--lr-decay-style", DECAY_STYLES, "linear", "Shape of the decay; WSD: warm-up, stable, decay at the end."),
    count("--lr-decay-iters", "Length of the decay; the whole training when not given.", "iterations"),
    count("--lr-decay-samples", "Length of the decay; the whole training when not given.", "samples"),
    count("--lr-decay-tokens", "Length of the decay; the whole training when not given.", "tokens"),
    count("--lr-wsd-decay-iters", "Length of WSD's decay.", "iterations"),
    count("--lr-wsd-decay-samples", "Length of WSD's decay.", "samples"),
    choice("--lr-wsd-decay-style", WSD_DECAY_STYLES, "exponential", "Shape of WSD's decay."),
    number("--lr-warmup-fraction", "Warm-up as a share of the decay's length.", at_least=0, below=1),
    count("--lr-warmup-iters", "Length of the linear warm-up.", "iterations", default=0, at_least=0),
    count("--lr-warmup-samples", "Length of the linear warm-up.", "samples", default=0, at_least=0),
    count("--lr-warmup-tokens", "Length of the linear warm-up.", "tokens", default=0, at_least=0),
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
    text("--skip-train-iteration-range", "FIRST-LAST FIRST-LAST ...: the same.", "iterations", nargs="+"),
    text("--log-tokens", "FIRST:LAST: print the tokens of every sample of these iterations.", "iterations"),
    text(
        "--spike-guard",
        "Actions for an unusual loss or gradient norm: log, skip the update, rerun the step, rollback.",
        nargs="+",
        choices=ACTIONS,
    ),
    number(
        "--spike-guard-deviations",
        "Standard deviations above the median from which a value is unusual.",
        default=8.0,
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
    text(
        "--spike-drill",
        "ITERATION or ITERATION:KIND: cause a spike there; kinds: data (several iterations), hardware (once).",
    ),
)
