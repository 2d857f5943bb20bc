"""Whether a training is at its end, and where that is: from its options and its last checkpoint, never stored. Pure."""

from __future__ import annotations

from typing import NamedTuple

from opsctl.run.checkpoints.inventory import Checkpoint
from trainer.recipe.lengths import BEGINNING, End
from trainer.recipe.options import Options


class Length(NamedTuple):
    """How long a training is, as its options ask; None: it is not counted in these."""

    samples: int | None
    iterations: int | None


def is_finished(options: Options, checkpoint: Checkpoint | None) -> bool:
    """Whether the trainer would take no further step from `checkpoint`."""
    end = _end(options)
    return checkpoint is not None and end is not None and end.is_reached(checkpoint)


def length(options: Options, checkpoint: Checkpoint | None) -> Length:
    """What the options ask for, tokens as samples."""
    end = _end(options)
    if end is None:
        return Length(None, None)
    return Length(end.samples_in_all(checkpoint or BEGINNING), end.iterations)


def _end(options: Options) -> End | None:
    """None where the options do not say it, or cannot be: then no task could train."""
    try:
        return End.of(options)
    except (TypeError, ValueError):
        return None
