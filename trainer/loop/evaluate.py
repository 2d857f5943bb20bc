"""Evaluation of every validation group in turn: as the training goes on, and at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.data.build import Dataset, Datasets
from trainer.data.gpt_dataset import Cyclic
from trainer.engine.build import evaluate_step
from trainer.formats.checkpoint.history import Progress
from trainer.formats.logs import log_lines
from trainer.formats.logs.log_lines import Timers, perplexity, write_evaluation, write_timers
from trainer.loop.batches import open_items
from trainer.loop.observer import Observer, Step
from trainer.loop.tensorboard import Curves
from trainer.parallel.process_groups import Parallel
from trainer.recipe.lengths import only_evaluates
from trainer.recipe.options import Options


@dataclass(frozen=True)
class Evaluation:
    """Mean loss by group, and how long all of it took."""

    losses: dict[str, float]
    milliseconds: float


def evaluate(
    engine: PipelineEngine,
    groups: Mapping[str, Dataset],
    consumed_samples: int,
    options: Options,
    parallel: Parallel,
    vocab_size: int,
    end_of_document: int | None,
    has_to_end: Callable[[], bool] = lambda: False,
) -> Evaluation | None:
    """--eval-iters full global batches of each group, from sample `consumed_samples` on. Collective.

    A group that has fewer samples left than that goes on at its beginning. None where `has_to_end`, which is asked
    before each batch and agrees over all ranks, has cut it short.
    """
    started = time.monotonic()
    wanted = options.eval_iters * options.global_batch_size
    micro_batches = options.global_batch_size // (options.micro_batch_size * parallel.data_size)
    losses = {}
    for name, dataset in groups.items():
        window = Cyclic(dataset, consumed_samples + wanted)
        items = open_items(window, consumed_samples, options, parallel, vocab_size, end_of_document, for_training=False)
        steps = []
        try:
            for _ in range(options.eval_iters):
                if has_to_end():
                    return None
                steps.append(evaluate_step(engine, items, micro_batches))
        finally:
            if items is not None:
                items.close()
        losses[name] = math.fsum(steps) / len(steps) if all(map(math.isfinite, steps)) else math.nan
    return Evaluation(losses, (time.monotonic() - started) * 1000)


class Evaluations(Observer):
    """Evaluates the validation groups every --eval-interval iterations, and these and the test groups at the end.

    evaluated: (groups, sample to begin with) -> what `evaluate` found there. tell: prints lines, on the rank that does.
    One that is cut short because the training leaves is not reported. Its samples count as consumed all the same, so
    that every later evaluation takes those that it would have taken: what is lost is that one point.
    """

    def __init__(
        self,
        options: Options,
        datasets: Datasets,
        evaluated: Callable[[Mapping[str, Dataset], int], Evaluation | None],
        tell: Callable[[str], None],
        curves: Curves,
    ) -> None:
        self._options, self._datasets, self._evaluated = options, datasets, evaluated
        self._tell, self._curves = tell, curves
        self._has_trained, self._only = False, only_evaluates(options)

    def after_step(self, step: Step) -> None:
        """Evaluate when it is due and move `consumed_valid_samples` on, so that the next one takes other samples."""
        self._has_trained = True
        progress, options = step.progress, self._options
        if not options.eval_iters or not self._datasets.valid or progress.iteration % options.eval_interval:
            return
        found = self._evaluated(self._datasets.valid, progress.consumed_valid_samples)
        progress.consumed_valid_samples += options.eval_iters * options.global_batch_size
        if found is None:
            self._tell(f" evaluation at iteration {progress.iteration} is cut short, as the training leaves: no loss")
            return
        self._tell_losses(found, progress.iteration)
        times = {"evaluation": found.milliseconds}
        self._tell(write_timers(Timers(times)))
        for group, loss in found.losses.items():
            self._curves.validation(group, loss, progress)
        self._curves.times(times, progress)

    def when_finished(self, progress: Progress) -> None:
        """Once more, on the finished model; nothing is left to save after it."""
        if not self._options.eval_iters or not (self._has_trained or self._only):
            return
        for groups, first, data in (
            (self._datasets.valid, progress.consumed_valid_samples, "val"),
            (self._datasets.test, 0, "test"),
        ):
            found = self._evaluated(groups, first) if groups else Evaluation({}, 0.0)
            if found is None:
                self._tell(" evaluation at the end of training is cut short, as the training leaves: no loss")
                return
            self._tell_losses(found, data=data)
            if self._only:  # at a training's end the last point is an interval's, or none
                for group, loss in found.losses.items():
                    self._curves.validation(group, loss, progress, data)

    def _tell_losses(self, found: Evaluation, iteration: int | None = None, data: str = "val") -> None:
        for group, loss in found.losses.items():
            self._tell(write_evaluation(log_lines.Evaluation(group, iteration, loss, perplexity(loss), data)))
