"""Comparing what several ranks hold in common, so that a rank whose numbers drift is found and not averaged away.

Compared are: every weight over the data-parallel replicas; what tensor-parallel ranks have whole (LayerNorms, biases of
row-parallel layers, positions), its fp32 master weights and moments; the tied embedding on the first and the last
pipeline stage, its master weights and moments; the optimizer's step counts and the loss scale over all ranks. ZeRO
shards master weights and moments over data-parallel ranks, so that of the rest of them there is no second copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from trainer.engine.members import fragment_of
from trainer.formats.checkpoint.history import Progress
from trainer.formats.checkpoint.partitions import engine_name, is_tied, saved_parameters
from trainer.loop.observer import Answer, Observer, Step
from trainer.parallel.agreement import Refusal
from trainer.parallel.bit_sums import bits_of, bits_of_part
from trainer.parallel.process_groups import Parallel
from trainer.recipe.model_shape import ModelShape

# So many findings are named in the one line; a broken rank differs in all that it has.
_NAMED = 3


@dataclass(frozen=True)
class Item:
    """One thing that a rank holds and others hold too: `what` of the parameter `name`.

    All ranks with the same name, what and `part` should have the same sum. With a `holder` a sum is that of the rank's
    share, and the totals over the ranks of each holder should be the same.
    """

    name: str  # as in the table of parameters
    what: str  # weight, master weight, exp_avg, ...
    part: tuple[int, ...] = ()
    holder: int | None = None


@dataclass(frozen=True)
class Drift:
    """A difference: the ranks that should all hold the same, as groups that do; the largest of them first."""

    item: Item
    sides: tuple[tuple[int, ...], ...]

    def words(self) -> str:
        """Return which ranks differ from most, or, without a majority, which groups differ."""
        what = f"{self.item.what} of {self.item.name}"
        most, *others = self.sides
        if len(most) > len(others[0]):
            apart = sorted(rank for side in others for rank in side)
            return f"{what} on {_ranks(apart)} differs from {_ranks(most)}"
        return f"{what} differs: {' against '.join(_ranks(side) for side in sorted(self.sides))}"


def drifts(items: Sequence[Sequence[Item]], sums: Sequence[Sequence[int]]) -> list[Drift]:
    """Find what differs: `items[rank]` and their sums in the same order. In the order of the first rank's items."""
    held: dict[tuple[str, str, tuple[int, ...]], dict[tuple[int, ...], int]] = {}
    first: dict[tuple[str, str, tuple[int, ...]], Item] = {}
    shares: dict[tuple[str, str, tuple[int, ...], int], dict[int, int]] = defaultdict(dict)
    for rank, (own, values) in enumerate(zip(items, sums, strict=True)):
        for item, value in zip(own, values, strict=True):
            key = item.name, item.what, item.part
            first.setdefault(key, item)
            holders = held.setdefault(key, {})
            if item.holder is None:
                holders[rank,] = value
            else:
                shares[*key, item.holder][rank] = value
    for (name, what, part, _), by_rank in shares.items():
        held[name, what, part][tuple(by_rank)] = sum(by_rank.values()) % (1 << 64)
    return [found for key, holders in held.items() if (found := _compared(first[key], holders))]


def drift_line(found: Sequence[Drift], iteration: int) -> str:
    """Return the message about it."""
    named = "; ".join(one.words() for one in found[:_NAMED])
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        f"after iteration {iteration} ranks hold different numbers where they should hold the same: {named}{more}. "
        "Nothing is saved of it: check the nodes of those ranks, and resume from the checkpoint before"
    )


def _compared(item: Item, holders: Mapping[tuple[int, ...], int]) -> Drift | None:
    by_value: dict[int, list[int]] = defaultdict(list)
    for ranks, value in holders.items():
        by_value[value].extend(ranks)
    if len(by_value) == 1:
        return None
    sides = sorted((tuple(sorted(ranks)) for ranks in by_value.values()), key=lambda side: (-len(side), side))
    return Drift(item, tuple(sides))


def _ranks(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2 and 4 to 7`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = [
        word
        for low, high in runs
        for word in ([str(low)] if low == high else [str(low), str(high)] if high == low + 1 else [f"{low} to {high}"])
    ]
    joined = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {joined}"


_MASTER = "master weight"


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


class Replicas:
    """All that this rank holds and others too."""

    def __init__(self, engine: PipelineEngine, parallel: Parallel, shape: ModelShape) -> None:
        self._engine, self._parallel = engine, parallel
        table = saved_parameters(shape)
        self._full_names = {engine_name(one): one.name for one in table}
        self._on_both_ends = {engine_name(one) for one in table if one.token_rows is not None and is_tied(table)}
        self._items_by_rank: list[list[Item]] = []

    def compare(self, iteration: int) -> None:
        """Compare the sums. Collective: one gathering of sums, and one of their items if new. Raises Refusal."""
        own = list(self._own())
        items = [item for item, _ in own]
        if self._is_new(items):
            self._items_by_rank = [[] for _ in range(self._parallel.world_size)]
            dist.all_gather_object(self._items_by_rank, items)
        found = drifts(self._items_by_rank, self._gathered(torch.stack([value for _, value in own])))
        if found:
            raise Refusal(drift_line(found, iteration))

    def _is_new(self, items: list[Item]) -> bool:
        """Return whether any rank has other items than before: moments exist only after an update. Collective."""
        is_new = not self._items_by_rank or self._items_by_rank[self._parallel.rank] != items
        on_any = torch.tensor(is_new, dtype=torch.int32, device=self._parallel.device)
        dist.all_reduce(on_any, op=dist.ReduceOp.MAX)
        return bool(on_any)

    def _gathered(self, own: Tensor) -> list[list[int]]:
        """Every rank's sums; stages differ in how many there are."""
        counts = [len(items) for items in self._items_by_rank]
        padded = torch.nn.functional.pad(own, (0, max(counts) - len(own)))
        of_all = padded.new_empty(len(counts) * len(padded))
        dist.all_gather_into_tensor(of_all, padded)
        rows = of_all.view(len(counts), -1).tolist()
        return [row[:count] for row, count in zip(rows, counts, strict=True)]

    def _own(self) -> Iterator[tuple[Item, Tensor]]:
        parallel = self._parallel
        for name, parameter in self._engine.module.named_parameters():
            full_name = self._full_names[name]
            split = (parallel.tensor_rank,) if getattr(parameter, "tensor_model_parallel", False) else ()
            yield Item(full_name, "weight", split), bits_of(parameter)
            if name in self._on_both_ends and parallel.pipeline_size > 1:
                for what, value in self._states(parameter):
                    yield Item(full_name, what, split, holder=parallel.pipeline_rank), value
            elif not split and parallel.tensor_size > 1:
                place = (parallel.data_rank,)
                for what, value in self._states(parameter):
                    yield Item(full_name, what, place), value
        yield from self._scalars()

    def _states(self, parameter: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield sums of this rank's share of the parameter's master weights and moments; 0 if it has none of it."""
        base, fragment = self._engine.optimizer.optimizer, fragment_of(parameter)
        group = base.param_groups[fragment.group if fragment else 0]
        flat = group["params"][0]
        states = {_MASTER: flat, **base.state[flat]}
        for what, state in states.items():
            if not torch.is_tensor(state) or state.shape != flat.shape:
                continue
            if fragment is None:
                yield what, torch.zeros((), dtype=torch.int64, device=flat.device)
            else:
                yield what, bits_of_part(state.narrow(0, fragment.start, fragment.elements), fragment.first)

    def _scalars(self) -> Iterator[tuple[Item, Tensor]]:
        """Yield the optimizer's step counts, and with fp16 the loss scale."""
        optimizer = self._engine.optimizer
        for number, group in enumerate(optimizer.optimizer.param_groups):
            step = optimizer.optimizer.state[group["params"][0]].get("step")
            if step is not None:
                yield Item(f"parameter group {number}", "step count"), self._whole(step)
        if self._engine.fp16_enabled():
            yield Item("all parameters", "loss scale"), self._whole(optimizer.cur_scale)

    def _whole(self, number: Any) -> Tensor:
        value = torch.as_tensor(float(number), dtype=torch.float64, device=self._parallel.device)
        return value.view(torch.int64)
