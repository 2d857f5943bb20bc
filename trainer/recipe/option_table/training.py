"""Options of the training: its length, optimizer, regularization, spikes, and the schedule of the learning rate."""

from __future__ import annotations

from trainer.recipe.learning_rate import COOLDOWN_STYLES, DECAY_STYLES
from trainer.recipe.model_options import RECOMPUTE
from trainer.recipe.option_table.row import Option, flag, group, option
from trainer.recipe.spike_guard import ACTIONS, LEAST, TOGETHER

TRAINING: tuple[Option, ...] = group(
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


REGULARIZATION: tuple[Option, ...] = group(
    "regularization",
    option("--attention-dropout", float, 0.1, "Dropout of the attention's probabilities.", at_least=0, below=1),
    option("--hidden-dropout", float, 0.1, "Dropout of embeddings, attention and MLP outputs.", at_least=0, below=1),
    option(
        "--weight-decay",
        float,
        0.01,
        "Weight decay, with adam decoupled; none on biases and LayerNorms.",
        at_least=0,
    ),
    option("--clip-grad", float, 1.0, "Largest norm of the gradient; 0 clips nothing.", at_least=0),
    option("--optimizer", str, "adam", "AdamW, or SGD with momentum.", choices=("adam", "sgd")),
    option("--adam-beta1", float, 0.9, "Adam's decay of the first moment.", at_least=0, below=1),
    option("--adam-beta2", float, 0.999, "Adam's decay of the second moment.", at_least=0, below=1),
    option("--adam-eps", float, 1e-8, "Added to Adam's denominator.", at_least=0),
    option("--sgd-momentum", float, 0.9, "SGD's momentum.", at_least=0, below=1),
)


_DECAY = "Length of the decay; the whole training when not given."
_WARMUP = "Length of the linear warm-up."
_WSD = "Length of WSD's last part, in which the rate comes down."

LEARNING_RATE: tuple[Option, ...] = group(
    "learning rate",
    option("--lr", float, None, "Highest learning rate.", at_least=0),
    option("--min-lr", float, 0.0, "Lowest learning rate after the warm-up.", at_least=0),
    option(
        "--lr-decay-style",
        str,
        "linear",
        "Shape of the decay; WSD: warm-up, stable, and a decay at the end.",
        choices=DECAY_STYLES,
    ),
    option("--lr-decay-iters", int, None, _DECAY, unit="iterations", at_least=1),
    option("--lr-decay-samples", int, None, _DECAY, unit="samples", at_least=1),
    option("--lr-decay-tokens", int, None, _DECAY, unit="tokens", at_least=1),
    option("--lr-wsd-decay-iters", int, None, _WSD, unit="iterations", at_least=1),
    option("--lr-wsd-decay-samples", int, None, _WSD, unit="samples", at_least=1),
    option("--lr-wsd-decay-style", str, "exponential", "Shape of WSD's last part.", choices=COOLDOWN_STYLES),
    option("--lr-warmup-fraction", float, None, "Warm-up as a share of the decay's length.", at_least=0, below=1),
    option("--lr-warmup-iters", int, 0, _WARMUP, unit="iterations", at_least=0),
    option("--lr-warmup-samples", int, 0, _WARMUP, unit="samples", at_least=0),
    option("--lr-warmup-tokens", int, 0, _WARMUP, unit="tokens", at_least=0),
    option(
        "--lr-cooldown-at-samples",
        int,
        None,
        "From this sample on the rate leaves its schedule and comes down to --min-lr; a later start may ask for it.",
        unit="samples",
        at_least=0,
    ),
    option(
        "--lr-cooldown-samples",
        int,
        None,
        "Length of that cooldown; up to the training's end when not given.",
        unit="samples",
        at_least=1,
    ),
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
        "FIRST LAST FIRST LAST ...: iterations, both ends in, whose data is left out; all counters move on.",
        unit="iterations",
        nargs="+",
        at_least=1,
    ),
    option(
        "--skip-train-iteration-range",
        str,
        None,
        "FIRST-LAST FIRST-LAST ...: the same as --train-range-to-skip.",
        unit="iterations",
        nargs="+",
    ),
    option(
        "--log-tokens",
        str,
        None,
        "FIRST:LAST: print the tokens of every sample of these iterations, of skipped ones too.",
        unit="iterations",
    ),
    option(
        "--spike-guard",
        str,
        None,
        "What to do where loss or gradient norm leave what is usual, any of: log, skip (the update), rerun (the step, "
        "to tell hardware from data), rollback (to a checkpoint, and leave the data out).",
        nargs="+",
        choices=ACTIONS,
    ),
    option(
        "--spike-guard-deviations",
        float,
        8.0,
        "Unusual is what lies so many standard deviations above the median.",
        at_least=1,
    ),
    option(
        "--spike-guard-window",
        int,
        128,
        "Newest usual iterations that say what is usual.",
        unit="iterations",
        at_least=LEAST,
        below=1_000_000,
    ),
    option(
        "--spike-guard-patience",
        int,
        3,
        f"So many unusual ones among {TOGETHER} are worth a rollback.",
        unit="iterations",
        at_least=1,
        below=TOGETHER + 1,
    ),
    option(
        "--spike-guard-margin",
        int,
        10,
        "Iterations before the first and after the last unusual one that are left out with them after a rollback.",
        unit="iterations",
        at_least=0,
    ),
    option("--spike-guard-rollbacks", int, 2, "No more rollbacks than so many in the whole training.", at_least=0),
    option(
        "--spike-drill",
        str,
        None,
        "ITERATION or ITERATION:KIND: make a spike there, to see what becomes of it. data: the loss is ten times as "
        "high for some iterations, whenever they are run; hardware: once, on one replica.",
    ),
)
