"""Comparison of the weights that several ranks have in common, so that a rank whose numbers drift is found.

Data-parallel replicas have all weights in common, tensor-parallel ranks those that are not split (norms, biases of
row-parallel layers, positions), and the first and the last pipeline stage the tied embedding. Master weights and
moments that drift change a weight sooner or later.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.formats.checkpoint.history import Progress
from trainer.formats.checkpoint.partitions import engine_name, saved_parameters
from trainer.loop.observer import Answer, Observer, Step
from trainer.parallel.agreement import Refusal
from trainer.parallel.bit_sums import bits_of
from trainer.parallel.process_groups import Parallel
from trainer.recipe.model_shape import ModelShape

# So many findings are named in the one line; a broken rank differs in all that it has.
_NAMED = 3
#: A parameter's name, and the tensor-parallel rank whose part it is; 0 for all of it.
Key = tuple[str, int]


@dataclass(frozen=True)
class Drift:
    """A difference: the ranks that should all hold the same, as groups that do; the largest of them first."""

    name: str  # as in the table of parameters
    sides: tuple[tuple[int, ...], ...]

    def words(self) -> str:
        """Return which ranks differ from most, or, without a majority, which groups differ."""
        most, *others = self.sides
        if len(most) > len(others[0]):
            apart = sorted(rank for side in others for rank in side)
            return f"weight of {self.name} on {_ranks(apart)} differs from {_ranks(most)}"
        return f"weight of {self.name} differs: {' against '.join(_ranks(side) for side in sorted(self.sides))}"


def drifts(keys: Sequence[Sequence[Key]], sums: Sequence[Sequence[int]]) -> list[Drift]:
    """Return what differs: `keys[rank]` and their sums in the same order. In the order of the first rank's keys."""
    ranks: dict[Key, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, (own, values) in enumerate(zip(keys, sums, strict=True)):
        for key, value in zip(own, values, strict=True):
            ranks[key][value].append(rank)
    return [
        Drift(name, tuple(sorted(map(tuple, by_sum.values()), key=lambda side: (-len(side), side))))
        for (name, _), by_sum in ranks.items()
        if len(by_sum) > 1
    ]


def drift_line(found: Sequence[Drift], iteration: int) -> str:
    """Return the message about it."""
    named = "; ".join(one.words() for one in found[:_NAMED])
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        f"after iteration {iteration} ranks hold different numbers where they should hold the same: {named}{more}. "
        "Nothing is saved of it: check the nodes of those ranks, and resume from the checkpoint before"
    )


def _ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3`, or `ranks 0, 2 and 4 to 7`."""
    words: list[str] = []
    for _, run in itertools.groupby(enumerate(ranks), lambda one: one[1] - one[0]):
        own = [rank for _, rank in run]
        words += [f"{own[0]} to {own[-1]}"] if len(own) > 2 else map(str, own)
    joined = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {joined}"


class Replicas:
    """The weights of all ranks. Creating one is collective."""

    def __init__(self, engine: PipelineEngine, parallel: Parallel, shape: ModelShape) -> None:
        names = {engine_name(one): one.name for one in saved_parameters(shape)}
        self._weights, own = [], []
        for name, weight in engine.module.named_parameters():
            is_split = getattr(weight, "tensor_model_parallel", False)
            self._weights.append(weight)
            own.append((names[name], parallel.tensor_rank if is_split else 0))
        self._keys: list[list[Key]] = [[] for _ in range(parallel.world_size)]
        dist.all_gather_object(self._keys, own)

    def compare(self, iteration: int) -> None:
        """Compare the sums of all weights. Collective: one small gathering. Raises Refusal on every rank."""
        own = torch.stack([bits_of(weight) for weight in self._weights])
        counts = [len(keys) for keys in self._keys]  # stages differ in it
        padded = torch.nn.functional.pad(own, (0, max(counts) - len(own)))
        of_all = padded.new_empty(len(counts) * len(padded))
        dist.all_gather_into_tensor(of_all, padded)
        rows = of_all.view(len(counts), -1).tolist()
        found = drifts(self._keys, [row[:count] for row, count in zip(rows, counts, strict=True)])
        if found:
            raise Refusal(drift_line(found, iteration))


class ReplicaCheck(Observer):
    """Compares after every `interval` iterations, and before what `saves_at` says is saved, asked for or left with.

    Raises Refusal on every rank, naming ranks and parameters, before anything of what has drifted is saved.
    """

    def __init__(self, replicas: Replicas, interval: int, saves_at: Callable[[int], bool]) -> None:
        self._replicas, self._interval, self._saves_at = replicas, interval, saves_at
        self._compared_at: int | None = None
        self._has_trained = False

    def after_step(self, step: Step) -> None:
        """Compare where it is due."""
        self._has_trained |= step.result is not None
        iteration = step.progress.iteration
        if iteration % self._interval == 0 or self._saves_at(iteration):
            self._compare(step.progress)

    def when_asked_to_save(self, progress: Progress, answer: Answer) -> bool:
        """Compare what is going to be saved; it saves nothing itself."""
        self._compare(progress)
        return False

    def after_going_back(self, progress: Progress) -> None:
        """Forget the comparison, which is no longer valid."""
        self._compared_at = None

    def before_leaving(self, progress: Progress) -> None:
        """Compare what is going to be saved."""
        self._compare(progress)

    def _compare(self, progress: Progress) -> None:
        if self._has_trained and self._compared_at != progress.iteration:
            self._replicas.compare(progress.iteration)
            self._compared_at = progress.iteration
