"""Every option of the trainer, once: name, type, default, unit, help, and the run-file table that holds it.

`trainer.recipe.options` reads this table for the command line, the run-file check and the documentation. Names are
Megatron-LM's and BigScience's; a module holds the options of one group. What those programs have and this one has not
is in REFUSED with the reason: nobody's option is dropped in silence.
"""

from __future__ import annotations

from trainer.recipe.option_table import (
    checkpoints,
    data,
    evaluation,
    initialization,
    learning_rate,
    logging,
    network,
    parallelism,
    precision,
    regularization,
    set_by_opsctl,
    spikes,
    training,
)
from trainer.recipe.option_table.refused import REFUSED
from trainer.recipe.option_table.row import Option

__all__ = ["OPTIONS", "REFUSED", "Option"]

#: In the order of the help and of docs/trainer-options.md.
OPTIONS: tuple[Option, ...] = tuple(
    option
    for module in (
        network,
        regularization,
        training,
        spikes,
        initialization,
        learning_rate,
        precision,
        parallelism,
        evaluation,
        logging,
        data,
        checkpoints,
        set_by_opsctl,
    )
    for option in module.OPTIONS
)
