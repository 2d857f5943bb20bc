"""The lengths of a training: samples, epochs, evaluations, and a start that only evaluates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from trainer.recipe.schedule import BatchRamp, samples_of_tokens, samples_to_train


class Counted(Protocol):
    """The progress of a training, as manifests and the training itself count it."""

    @property
    def iteration(self) -> int:
        """Iterations done."""

    @property
    def consumed_train_samples(self) -> int:
        """Samples consumed."""

    @property
    def consumed_train_tokens(self) -> int:
        """Tokens consumed."""


class _Beginning(NamedTuple):
    iteration: int = 0
    consumed_train_samples: int = 0
    consumed_train_tokens: int = 0


#: The start of every training.
BEGINNING: Counted = _Beginning()


@dataclass(frozen=True)
class End:
    """The end of a training: the first of its limits, of which it has at least one.

    At `samples` it ends when no further global batch fits; a remainder is never trained on. At `tokens` it ends with
    the step that reaches them, as in Megatron.
    """

    ramp: BatchRamp
    sequence_length: int
    iterations: int | None = None
    samples: int | None = None
    tokens: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> End:
        """Return the options' end. Needs `global_batch_size`. Raises ValueError for a wrong ramp or without a limit."""
        limits = options["train_iters"], options["train_samples"], options["train_tokens"]
        if limits == (None, None, None):
            raise ValueError("neither --train-iters nor --train-samples nor --train-tokens is given")
        return cls(BatchRamp.of(options), options["seq_length"], *limits)

    def is_reached(self, at: Counted) -> bool:
        """Return True if a training at this point takes no further step. Trainer and opsctl both use this."""
        if self.iterations is not None and at.iteration >= self.iterations:
            return True
        if self.tokens is not None and at.consumed_train_tokens >= self.tokens:
            return True
        consumed = at.consumed_train_samples
        return self.samples is not None and self.samples - consumed < self.ramp.batch_at(consumed)

    def iterations_left(self, at: Counted) -> int:
        """Return the steps from this point to the end."""
        left = []
        if self.iterations is not None:
            left.append(self.iterations - at.iteration)
        if self.samples is not None:
            left.append(self.ramp.walk(at.consumed_train_samples, self.samples).steps)
        if (by_tokens := self._samples_by_tokens(at)) is not None:
            walked = self.ramp.walk(at.consumed_train_samples, by_tokens)
            left.append(walked.steps + (walked.reached < by_tokens))
        return max(0, min(left))

    def samples_in_all(self, at: Counted) -> int | None:
        """Return the end in samples; None if it is counted in iterations."""
        known = [one for one in (self.samples, self._samples_by_tokens(at)) if one is not None]
        return min(known, default=None)

    def samples_to_read(self, at: Counted) -> int:
        """Return the samples needed from the start of the training, with those of a whole last step.

        If the batch size never changed, the number is the same at every start, so the data is shuffled alike.
        """
        batch, by_tokens = self.ramp.global_batch_size, self._samples_by_tokens(at)
        enough = [] if self.samples is None else [self.samples]
        if by_tokens is not None:
            enough.append(by_tokens + batch - 1)
        if self.iterations is not None:
            enough.append(at.consumed_train_samples + max(0, self.iterations - at.iteration) * batch)
        return min(enough)

    def _samples_by_tokens(self, at: Counted) -> int | None:
        """Return the samples consumed at the limit in tokens, with this sequence length from here on."""
        if self.tokens is None:
            return None
        left = self.tokens - at.consumed_train_tokens
        return at.consumed_train_samples + samples_of_tokens(left, self.sequence_length, up=True)


@dataclass(frozen=True)
class Lengths:
    """The lengths of the whole training from its start, in samples or iterations."""

    end: End
    train_iterations: int
    train_samples: int  # of the options
    samples_to_read: int  # needed from the training data
    valid_samples: int  # of each validation group
    test_samples: int

    @property
    def ramp(self) -> BatchRamp:
        """The growth of the batch size."""
        return self.end.ramp

    @classmethod
    def of(cls, options: Mapping[str, Any], at: Counted = BEGINNING, consumed_valid_samples: int = 0) -> Lengths:
        """Return the lengths of a training at this point. Needs `global_batch_size`. Raises as `End.of`."""
        end = End.of(options)
        iterations = at.iteration + end.iterations_left(at)
        evaluated = options["eval_iters"] * end.ramp.global_batch_size
        interval = options["eval_interval"]
        evaluations = iterations // interval - at.iteration // interval + 1
        return cls(
            end=end,
            train_iterations=iterations,
            train_samples=samples_to_train(options),
            samples_to_read=end.samples_to_read(at),
            valid_samples=consumed_valid_samples + evaluations * evaluated,
            test_samples=evaluated,
        )


#: Megatron's share of an epoch's samples below which the last epoch is shuffled separately. BigScience used 0.95.
SEPARATE_LAST_EPOCH_THRESHOLD = 0.80
#: Megatron builds this surplus of each dataset, so that rounding never exceeds its end.
SURPLUS = 0.005


@dataclass(frozen=True)
class EpochPlan:
    """The number of passes over the documents."""

    epochs: int
    tokens_per_epoch: int
    samples: int  # in all the epochs
    samples_before_last_epoch: int  # equal to `samples` unless the last epoch is shuffled separately
    separate_last_epoch: bool


def plan_epochs(
    tokens_per_epoch: int, sequence_length: int, samples: int | None, threshold: float = SEPARATE_LAST_EPOCH_THRESHOLD
) -> EpochPlan:
    """Return the fewest epochs with `samples` samples (None: one epoch), and if the last one is shuffled separately."""
    epochs = 1
    if samples is not None:
        epochs = max(1, -(-(samples * sequence_length + 1) // tokens_per_epoch))
    total = (epochs * tokens_per_epoch - 1) // sequence_length
    before_last = ((epochs - 1) * tokens_per_epoch - 1) // sequence_length
    separate = False
    if epochs > 1 and samples is not None:
        per_epoch = (tokens_per_epoch - 1) // sequence_length
        separate = samples - before_last < int(threshold * per_epoch)
    return EpochPlan(epochs, tokens_per_epoch, total, before_last if separate else total, separate)


def target_sizes(weights: Sequence[float], samples: int) -> list[int]:
    """Return the samples of each dataset in a blend of `samples`. `weights` add up to one.

    Their sum is the blend's length.
    """
    return [math.ceil(samples * weight) for weight in weights]


def sizes_to_build(weights: Sequence[float], samples: int) -> list[int]:
    """Return the samples to build of each dataset: its target and the surplus, each rounded up as Megatron does."""
    return [math.ceil(target * (1 + SURPLUS)) for target in target_sizes(weights, samples)]


#: Options with the same meaning, by their keys: this trainer's name, the originals', Megatron-LM's.
EVALUATE_ONLY = ("eval_only", "no_train", "skip_train")


def only_evaluates(options: Mapping[str, Any]) -> bool:
    """Return True if the training takes no step."""
    return any(options[key] for key in EVALUATE_ONLY)
