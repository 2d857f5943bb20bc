"""The schedule of the learning rate."""

from __future__ import annotations

from trainer.recipe.learning_rate import COOLDOWN_STYLES, DECAY_STYLES
from trainer.recipe.option_table.row import Option, flag, group, option

_DECAY = "Length of the decay; the whole training when not given."
_WARMUP = "Length of the linear warm-up."
_WSD = "Length of WSD's last part, in which the rate comes down."

OPTIONS: tuple[Option, ...] = group(
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
