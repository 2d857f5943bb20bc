"""The table of the trainer's options: name, type, default, unit, help, and the table of the run file.

`trainer.recipe.options` reads this table for the command line, the check of run files and the documentation. Names are
Megatron-LM's and BigScience's. Their options that are not supported are in REFUSED with the reason.
"""

from __future__ import annotations

from trainer.recipe.option_table.model import INITIALIZATION, NETWORK, PARALLELISM, PRECISION
from trainer.recipe.option_table.records import CHECKPOINTS, DATA, EVALUATION, LOGGING
from trainer.recipe.option_table.refused import REFUSED, SET_BY_OPSCTL
from trainer.recipe.option_table.row import Option
from trainer.recipe.option_table.training import LEARNING_RATE, REGULARIZATION, SPIKES, TRAINING

__all__ = ["OPTIONS", "REFUSED", "Option"]

#: In the order of the help and of docs/trainer-options.md.
OPTIONS: tuple[Option, ...] = (
    *(*NETWORK, *REGULARIZATION, *TRAINING, *SPIKES, *INITIALIZATION, *LEARNING_RATE, *PRECISION, *PARALLELISM),
    *(*EVALUATION, *LOGGING, *DATA, *CHECKPOINTS, *SET_BY_OPSCTL),
)
