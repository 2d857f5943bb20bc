"""Which data a training leaves out, and what it does where the loss leaves what is usual."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, group, option
from trainer.recipe.spike_guard import ACTIONS, LEAST, TOGETHER

OPTIONS: tuple[Option, ...] = group(
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
