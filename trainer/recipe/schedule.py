"""The batch size as a function of the samples consumed, and the number of samples. Pure arithmetic, without torch.

It depends on nothing else, so a resumed training needs only that counter to continue exactly. The learning rate is in
`learning_rate`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True)
class RampStage:
    """One batch size of a ramp-up, or (the last stage) the global batch size after it."""

    batch_size: int
    first_sample: int  # consumed samples at the first step of this stage
    first_step: int  # 1-based
    nominal_steps: int | None  # floor(floor(samples per interval) / batch size); None for the stage after the ramp
    actual_steps: int | None  # by the trainer's rule; None for the stage after the ramp


class Walked(NamedTuple):
    """Steps taken, and the samples consumed after them."""

    steps: int
    reached: int


@dataclass(frozen=True)
class BatchRamp:
    """The global batch size as it grows from `start` by `increment` over the first `ramp_samples` samples.

    `start == global_batch_size` or `ramp_samples == 0` is no ramp.
    Raises ValueError, in one line, for one that cannot be walked.
    """

    start: int
    increment: int
    ramp_samples: int
    global_batch_size: int

    def __post_init__(self) -> None:
        if self.start < 1 or self.global_batch_size < 1:
            raise ValueError(f"batch sizes must be positive, not {self.start} and {self.global_batch_size}")
        if self.ramp_samples < 0:
            raise ValueError(f"a batch size ramp-up cannot last {self.ramp_samples} samples")
        if self.start > self.global_batch_size:
            raise ValueError(
                f"the batch size ramp-up starts at {self.start}, above the global batch size {self.global_batch_size}"
            )
        if not self.is_ramp:
            return
        if self.increment < 1:
            raise ValueError(f"the batch size increment must be positive, not {self.increment}")
        if (self.global_batch_size - self.start) % self.increment:
            raise ValueError(
                f"the batch size cannot go from {self.start} to {self.global_batch_size} in steps of {self.increment}: "
                f"{self.global_batch_size - self.start} is not a multiple of {self.increment}"
            )

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> BatchRamp:
        """Return the options' ramp, or a constant one. Needs `global_batch_size`. Raises ValueError like the class."""
        batch = options["global_batch_size"]
        start, increment, ramp_samples = options["rampup_batch_size"] or (batch, 1, 0)
        return cls(start, increment, ramp_samples, batch)

    @classmethod
    def constant(cls, global_batch_size: int) -> BatchRamp:
        """Return a constant batch size."""
        return cls(global_batch_size, 1, 0, global_batch_size)

    @property
    def is_ramp(self) -> bool:
        """True if the batch size ever changes. Otherwise `increment` is not used."""
        return self.start != self.global_batch_size and self.ramp_samples > 0

    @property
    def intervals(self) -> int:
        """The number of increments from the start to the global batch size; 0 without a ramp."""
        return (self.global_batch_size - self.start) // self.increment if self.is_ramp else 0

    @property
    def samples_per_interval(self) -> int:
        """The floor of the samples spent at one batch size of the ramp; 0 without a ramp."""
        return self.ramp_samples // self.intervals if self.is_ramp else 0

    def batch_at(self, consumed_samples: int) -> int:
        """Return the global batch size of the step that starts after `consumed_samples` samples."""
        if not self.is_ramp or consumed_samples > self.ramp_samples:
            return self.global_batch_size
        per_interval = self.ramp_samples / self.intervals
        return self.start + int(consumed_samples / per_interval) * self.increment

    def stages(self, consumed: int = 0) -> tuple[RampStage, ...]:
        """Return every batch size used from `consumed` samples on, in order. Steps count from there.

        The last is the global batch size, whose steps have no end here.
        """
        stages = []
        step = 1
        while self.is_ramp and consumed <= self.ramp_samples and self.batch_at(consumed) < self.global_batch_size:
            batch = self.batch_at(consumed)
            steps = self._steps_in_stage(consumed, batch)
            stages.append(RampStage(batch, consumed, step, self.samples_per_interval // batch, steps))
            consumed += steps * batch
            step += steps
        return (*stages, RampStage(self.global_batch_size, consumed, step, None, None))

    def walk(self, consumed: int, samples: int) -> Walked:
        """Return the whole steps that fit between `consumed` and `samples`."""
        steps = 0
        for stage in self.stages(consumed):
            fitting = max(0, samples - consumed) // stage.batch_size
            taken = fitting if stage.actual_steps is None else min(stage.actual_steps, fitting)
            steps += taken
            consumed += taken * stage.batch_size
            if taken != stage.actual_steps:
                break
        return Walked(steps, consumed)

    def nominal_steps_through(self) -> list[int]:
        """Return nominal numbers of steps from the start through each stage of the ramp.

        Every stage is one interval long, and the sum is rounded down once.
        """
        total, through = 0.0, []
        for stage in self.stages()[:-1]:
            total += self.samples_per_interval / stage.batch_size
            through.append(math.floor(total))
        return through

    def _steps_in_stage(self, consumed: int, batch: int) -> int:
        """Return the steps until `batch_at` leaves `batch`: an estimate, corrected by the rule itself."""
        reached = (batch - self.start) // self.increment + 1
        boundary = reached * self.ramp_samples / self.intervals
        steps = max(1, math.ceil((boundary - consumed) / batch))
        while steps > 1 and self.batch_at(consumed + (steps - 1) * batch) != batch:
            steps -= 1
        while self.batch_at(consumed + steps * batch) == batch:
            steps += 1
        return steps


def train_iterations(ramp: BatchRamp, train_samples: int) -> int:
    """Return the steps of `train_samples` samples: the ramp by the trainer's rule, then the global batch size.

    A training that ends inside its ramp counts the whole steps that fit.
    """
    return ramp.walk(0, train_samples).steps


def samples_of_tokens(tokens: int, sequence_length: int, up: bool = False) -> int:
    """Return the samples that hold `tokens` tokens, rounded down, or up with `up`."""
    return -(-int(tokens) // sequence_length) if up else int(tokens) // sequence_length


def samples_to_train(options: Mapping[str, Any]) -> int:
    """Return the samples of the whole training, the fewest if it has several lengths.

    Iterations count a global batch each: a length in iterations has no ramp. Raises ValueError without any length.
    """
    samples, tokens, iterations = options["train_samples"], options["train_tokens"], options["train_iters"]
    lengths = [samples] if samples else []
    if tokens:
        lengths.append(samples_of_tokens(tokens, options["seq_length"], up=True))
    if iterations:
        lengths.append(iterations * options["global_batch_size"])
    if not lengths:
        raise ValueError("neither --train-iters nor --train-samples nor --train-tokens is given")
    return int(min(lengths))


PAIRS, WORDS, SHOWN = "--train-range-to-skip", "--skip-train-iteration-range", "--log-tokens"


@dataclass(frozen=True, order=True)
class IterationRange:
    """The iterations from `first` to `last`, both included. `why` is the origin of the range."""

    first: int
    last: int
    why: str = ""

    def __contains__(self, iteration: int) -> bool:
        return self.first <= iteration <= self.last

    def words(self) -> str:
        """Return `iteration 10` or `iterations 10 to 20`."""
        return f"iteration {self.first}" if self.first == self.last else f"iterations {self.first} to {self.last}"


@dataclass(frozen=True)
class SkippedIterations:
    """All skipped ranges, in any order. They may overlap."""

    ranges: tuple[IterationRange, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SkippedIterations:
        """Return the ranges of both options. Raises ValueError, in one line with both values, for an invalid range."""
        return cls((*_of_pairs(options["train_range_to_skip"] or ()), *_of_words(options)))

    def at(self, iteration: int) -> IterationRange | None:
        """Return the range with the iteration that ends last; None if the iteration is trained."""
        return max((one for one in self.ranges if iteration in one), key=lambda one: one.last, default=None)


def shown_iterations(options: Mapping[str, Any]) -> IterationRange | None:
    """Return the iterations of --log-tokens; None without it. Raises ValueError as `SkippedIterations.of`."""
    word = options["log_tokens"]
    return None if word is None else _of_word(SHOWN, word, ":")


def _of_pairs(numbers: Sequence[int]) -> list[IterationRange]:
    if len(numbers) % 2:
        raise ValueError(
            f"{PAIRS} {' '.join(map(str, numbers))}: {len(numbers)} numbers are no pairs: {numbers[-1]} begins a range "
            "without an end; give FIRST LAST FIRST LAST ..."
        )
    return [_checked(PAIRS, first, last, " ") for first, last in zip(numbers[::2], numbers[1::2], strict=True)]


def _of_words(options: Mapping[str, Any]) -> list[IterationRange]:
    return [_of_word(WORDS, word, "-") for word in options["skip_train_iteration_range"] or ()]


def _of_word(option: str, word: str, between: str) -> IterationRange:
    match = re.fullmatch(rf"([0-9]{{1,18}}){between}([0-9]{{1,18}})", word)
    if match is None:
        raise ValueError(f"{option} {word}: give FIRST{between}LAST, two iterations")
    return _checked(option, int(match[1]), int(match[2]), between)


def _checked(option: str, first: int, last: int, between: str) -> IterationRange:
    given = f"{option} {first}{between}{last}"
    if first < 1:
        raise ValueError(f"{given}: iterations are counted from 1, and the range is {first} to {last}")
    if first > last:
        raise ValueError(f"{given}: it begins at {first}, after its end at {last}; give {last}{between}{first}")
    return IterationRange(first, last, option)
