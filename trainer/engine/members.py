"""The private members of DeepSpeed's engine and optimizers that other packages need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import nn

#: What the engine counts, by DeepSpeed's names, in the engine and in the checkpoint.
COUNTERS = ("global_steps", "global_samples", "skipped_steps")


class Fragment(NamedTuple):
    """The elements of a parameter that this data rank's optimizer has.

    group: number of the optimizer's group. start: the first one's place in the group's partition. first: its place in
    the parameter.
    """

    group: int
    start: int
    first: int
    elements: int


def fragment_of(parameter: nn.Parameter) -> Fragment | None:
    """Return what this data rank's optimizer has of a parameter; None where it has nothing of it."""
    mapping: Any = parameter._hp_mapping  # type: ignore[attr-defined]
    if mapping is None:
        return None
    stored, own = mapping.hp_fragment_address, mapping.lp_fragment_address
    return Fragment(mapping.param_group_index, stored.start, own.start, stored.numel)


def optimizer_groups(engine: PipelineEngine) -> list[list[nn.Parameter]]:
    """Return the parameters of each of the optimizer's groups."""
    optimizer: Any = engine.optimizer
    found: list[list[nn.Parameter]] = optimizer.bf16_groups if engine.bfloat16_enabled() else optimizer.bit16_groups
    return found


def forget_linked_states(engine: PipelineEngine) -> None:
    """Have parameters hold views of the optimizer's new states after its next step."""
    engine.optimizer._hp_optimizer_states_linked = False


def masters_from_weights(engine: PipelineEngine) -> None:
    """Set the optimizer's fp32 weights from the model's weights."""
    engine.optimizer._restore_from_bit16_weights()


def replace_instructions(
    engine: PipelineEngine, replaced: dict[type, Callable[..., None]]
) -> dict[type, Callable[..., None]]:
    """Have the engine carry out these instructions of its schedule in another way. Returns all of them as before."""
    before: dict[type, Callable[..., None]] = engine._INSTRUCTION_MAP
    engine._INSTRUCTION_MAP = {**before, **replaced}
    return before


def instruction(engine: PipelineEngine, kind: type) -> Callable[..., None]:
    """Return the function that carries out an instruction now."""
    found: Callable[..., None] = engine._INSTRUCTION_MAP[kind]
    return found
