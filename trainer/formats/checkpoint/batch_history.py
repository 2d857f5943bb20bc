"""The batch sizes of a training over its iterations, from its manifests, and the samples up to any iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.formats.checkpoint.manifest import Manifest
from trainer.formats.errors import DataError
from trainer.recipe.schedule import BatchRamp, IterationRange, SkippedIterations

#: The settings that decide the batch sizes.
_DECIDING = ("global_batch_size", "rampup_batch_size", "train_range_to_skip", "skip_train_iteration_range")


# Starts that count iterations from 0 again.
_FROM_ZERO = ("began", "finetuned", "imported")


@dataclass(frozen=True)
class Stretch:
    """The batch sizes and skipped ranges that apply after `iteration` iterations and `samples` samples."""

    iteration: int
    samples: int
    ramp: BatchRamp
    skipped: SkippedIterations

    def samples_after(self, iteration: int) -> int:
        """Return the samples consumed after the iteration, by this stretch's batch sizes."""
        consumed, left = self.samples, iteration - self.iteration
        for stage in self.ramp.stages(consumed):
            taken = left if stage.actual_steps is None else min(left, stage.actual_steps)
            consumed += taken * stage.batch_size
            left -= taken
        return consumed


@dataclass(frozen=True)
class BatchHistory:
    """A training's stretches, the earliest first. Iterations count from 1, samples from 0."""

    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, options: Mapping[str, Any], manifest: Manifest | None) -> BatchHistory:
        """Return the history of a training that resumes from `manifest` (None: from the start) with `options`.

        If the history does not account for the manifest's samples, it begins at the manifest.
        """
        now = {name: options[name] for name in _DECIDING}
        if manifest is None:
            return cls((_stretch(0, 0, now),))
        left_out = manifest.spike_guard.ranges if manifest.spike_guard is not None else ()
        at_manifest = _stretch(manifest.iteration, manifest.consumed_train_samples, now, left_out)
        before = _until(manifest, now, left_out)
        if before[-1].samples_after(manifest.iteration) != manifest.consumed_train_samples:
            before = []
        return cls((*before, at_manifest))

    def samples_after(self, iteration: int) -> int:
        """Return the samples consumed after the iteration. Raises DataError if it is unknown."""
        stretch = self._one_with(lambda one: one.iteration <= iteration, f"iteration {iteration:,}")
        return stretch.samples_after(iteration)

    def iteration_of(self, sample: int) -> int:
        """Return the iteration that reads the sample. Raises DataError if it is unknown."""
        stretch = self._one_with(lambda one: one.samples <= sample, f"sample {sample:,}")
        return stretch.iteration + stretch.ramp.walk(stretch.samples, sample).steps + 1

    def is_skipped(self, iteration: int) -> bool:
        """Return True if the iteration's samples were counted but not trained on."""
        stretch = self._one_with(lambda one: one.iteration < iteration, f"iteration {iteration:,}")
        return stretch.skipped.at(iteration) is not None

    def _one_with(self, begins_before: Callable[[Stretch], bool], what: str) -> Stretch:
        found = [one for one in self.stretches if begins_before(one)]
        if not found:
            first = self.stretches[0]
            raise DataError(
                f"{what}: the samples of an iteration are unknown before iteration {first.iteration:,} (sample "
                f"{first.samples:,}), because the checkpoint's history has no batch sizes before it"
            )
        return found[-1]


def _until(manifest: Manifest, now: Mapping[str, Any], left_out: Sequence[IterationRange]) -> list[Stretch]:
    """Return the stretches that led to the manifest, from its settings and the changes at its starts.

    now: settings to use where an older trainer did not save them. left_out: ranges that the spike guard skipped.
    """
    starts = list(manifest.history)
    beginnings = [number for number, start in enumerate(starts) if start.kind in _FROM_ZERO]
    starts = starts[beginnings[-1] :] if beginnings else starts
    in_force = {name: manifest.settings.get(name, now[name]) for name in _DECIDING}
    settings = [in_force]
    for start in reversed(starts[1:]):
        in_force = {**in_force, **{one.name: one.before for one in start.changes if one.name in _DECIDING}}
        settings.insert(0, in_force)
    iterations = [0, *(start.iteration for start in starts[1:])]
    stretches: list[Stretch] = []
    for iteration, one in zip(iterations, settings, strict=True):
        samples = stretches[-1].samples_after(iteration) if stretches else 0
        stretches.append(_stretch(iteration, samples, one, left_out))
    return stretches


def _stretch(
    iteration: int, samples: int, settings: Mapping[str, Any], left_out: Sequence[IterationRange] = ()
) -> Stretch:
    skipped = SkippedIterations((*SkippedIterations.of(settings).ranges, *left_out))
    return Stretch(iteration, samples, BatchRamp.of(settings), skipped)
