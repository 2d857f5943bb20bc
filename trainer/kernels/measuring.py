"""Measure each implementation of the operations of a training on this device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import torch

from trainer.formats.attempt.kernels import FamilyTimes, KernelTimes
from trainer.kernels.apex import ApexMissing, apex_kernels
from trainer.kernels.attention import TORCH
from trainer.kernels.choice import APEX, FAMILIES, Family, Source, family_kernels, has_compiler, source_of
from trainer.kernels.times import COMPILED, buffer_sets, cache_bytes, device_name, in_turns
from trainer.kernels.ways import Sizes, work_of
from trainer.recipe.options import Options

#: Seconds of one turn; each implementation of a family has three turns.
_TURN_S = 0.3
#: Number of weights that Adam updates: more than any cache holds, the same for every model.
_WEIGHTS = {"cuda": 1 << 27, "cpu": 1 << 22}


def measured(
    options: Options,
    device: torch.device,
    say: Callable[[str], None],
    turn_s: float = _TURN_S,
    weights: int | None = None,
) -> KernelTimes:
    """Measure every family that such a training computes, at its sizes.

    say: called for each implementation that is missing, or ends with an error, with the reason.
    """
    source, sizes = source_of(options, device), Sizes.of(options)
    count = _WEIGHTS[device.type] if weights is None else weights
    families = []
    for family in FAMILIES:
        if not family.is_needed(options):
            continue
        work = work_of(family.name, sizes, device, count)
        ways: dict[str, Callable[..., Any]] = {}
        sets = buffer_sets(work.make, cache_bytes(device))
        for name, operation in _operations_of(family, options, source, device, work.operation, say):
            try:
                work.run(operation, *sets[0])
            except Exception as error:  # from a compiler or another library: this implementation is left out
                say(f"{family.name} by {name}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
                continue
            ways[name] = lambda *buffers, own=operation, run=work.run: run(own, *buffers)
        families.append(
            FamilyTimes(
                family=family.name,
                kind=sizes.kind(family.name),
                precision=sizes.precision,
                columns=sizes.columns(family.name),
                shape=work.shape,
                seconds=in_turns(ways, sets, device, turn_s),
                measured_at=datetime.now().astimezone().isoformat(timespec="seconds"),
            )
        )
        del sets
    return KernelTimes(
        device=device_name(device), torch=str(torch.__version__), cuda=torch.version.cuda, families=families
    )


def _operations_of(
    family: Family,
    options: Options,
    source: Source,
    device: torch.device,
    operation: Callable[[Any], Callable[..., Any]],
    say: Callable[[str], None],
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (name, function) of each implementation of a family."""
    ours = family_kernels(family, options, source)
    if isinstance(ours, str):
        say(f"{family.name} by {source.by}: {ours}")
    else:
        yield source.by, operation(ours)
    yield TORCH, operation(None)
    if device.type != "cuda":
        return
    if has_compiler():
        yield COMPILED, torch.compile(operation(None), mode="max-autotune-no-cudagraphs", dynamic=False)
    try:
        yield APEX, operation(apex_kernels(family.attribute))
    except ApexMissing as error:
        say(f"{family.name} by {APEX}: {error}")
