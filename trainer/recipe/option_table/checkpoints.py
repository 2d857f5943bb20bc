"""What is saved when, and what a start takes from it."""

from __future__ import annotations

from trainer.recipe.identity import TRAINING
from trainer.recipe.option_table.row import Option, flag, group, option

OPTIONS: tuple[Option, ...] = group(
    "checkpoints",
    option("--save-interval", int, None, "Iterations between checkpoints.", unit="iterations", at_least=1),
    option(
        "--save-schedule",
        str,
        None,
        "Instead of one interval: INTERVAL:LAST ... INTERVAL, so 10:100 18:1000 1500 saves what 10 divides up to "
        "iteration 100, what 18 divides up to 1000, then what 1500 divides.",
        nargs="+",
    ),
    option(
        "--save-iterations",
        int,
        None,
        "Save these too; what they leave is pinned and never pruned.",
        unit="iterations",
        nargs="+",
        at_least=1,
    ),
    flag(
        "--async-save",
        "Write checkpoints while the training goes on, from a copy of a rank's files in the host's memory.",
    ),
    flag(
        "--save-non-finite",
        "Save a state with NaN or infinite weights, optimizer states or loss too, marked as such; without this option "
        "it is not saved, and the training resumes from the last finite checkpoint.",
    ),
    flag("--no-save-optim", "Leave optimizer states out of checkpoints."),
    flag("--no-save-rng", "Leave random states out of checkpoints."),
    flag("--no-load-optim", "Start with fresh optimizer states."),
    flag("--no-load-rng", "Start with fresh random states."),
    flag("--finetune", "Load weights only and start at iteration 0."),
    option(
        "--load-step",
        int,
        None,
        "Begin at this iteration's checkpoint, not at the latest; later starts go on from what came of it.",
        unit="iterations",
        at_least=0,
    ),
    option(
        "--allow-changed",
        str,
        None,
        "Go on from a checkpoint of another training, if no more than these are others; on record in the manifest.",
        choices=tuple(fact.name for fact in TRAINING),
        nargs="+",
    ),
    flag("--no-verify-checkpoint-checksums", "Look at files' sizes alone before loading, not at their contents."),
    flag(
        "--verify-checkpoint-checksums",
        "Compare every file's checksum before loading.",
        notice="checksums are compared unless --no-verify-checkpoint-checksums is given",
    ),
    flag(
        "--load-fallback",
        "Where the latest checkpoint is damaged, go on from the newest complete one before it, on record.",
    ),
    table="checkpoints",
)
