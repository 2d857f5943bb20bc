"""How long a training is and how much it evaluates on: from the options. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.recipe.schedule import BatchRamp, samples_to_train, train_iterations


@dataclass(frozen=True)
class Lengths:
    """All in samples or iterations of the whole training, from its very beginning."""

    ramp: BatchRamp
    train_iterations: int
    train_samples: int  # what those iterations consume
    valid_samples: int  # of each validation group
    test_samples: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Lengths:
        """Needs `global_batch_size`, and `train_samples` or `train_iters`. Raises ValueError for a wrong ramp."""
        ramp, samples = BatchRamp.of(options), samples_to_train(options)
        iterations = train_iterations(ramp, samples) if options["train_samples"] else options["train_iters"]
        evaluated = options["eval_iters"] * ramp.global_batch_size
        evaluations = iterations // options["eval_interval"] + 1
        return cls(ramp, iterations, samples, evaluations * evaluated, evaluated)
