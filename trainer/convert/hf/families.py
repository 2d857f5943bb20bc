"""The supported model families, and the choice of one for a model."""

from __future__ import annotations

from collections.abc import Collection

from trainer.convert.hf.bloom import BLOOM
from trainer.convert.hf.family import Family
from trainer.convert.hf.gpt2 import GPT2
from trainer.convert.hf.llama import LLAMA
from trainer.formats.errors import CheckpointError
from trainer.recipe.model_shape import ModelShape

FAMILIES: dict[str, Family] = {family.name: family for family in (BLOOM, GPT2, LLAMA)}


def family_of(shape: ModelShape, names: Collection[str], wanted: str | None = None) -> Family:
    """Return the family for a model of this shape and these parameters. `wanted` chooses if several fit.

    Raises CheckpointError with each misfit, both values of each.
    """
    candidates = [FAMILIES[wanted]] if wanted else list(FAMILIES.values())
    reasons = {family.name: _reasons(family, shape, names) for family in candidates}
    fitting = [family for family in candidates if not reasons[family.name]]
    if len(fitting) > 1:
        raise CheckpointError(f"it fits {' or '.join(one.name for one in fitting)}: give --format")
    if not fitting:
        raise CheckpointError("; ".join(f"it does not fit {name}: {', '.join(why)}" for name, why in reasons.items()))
    return fitting[0]


def family_named(model_type: object) -> Family:
    """Return the family of a `config.json`. Raises CheckpointError for an unsupported one."""
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise CheckpointError(f"config.json: model_type is {model_type!r:.80}, the trainer has {', '.join(FAMILIES)}")
    return family


def _reasons(family: Family, shape: ModelShape, names: Collection[str]) -> list[str]:
    reasons = [str(one) for one in family.misfits(shape)]
    homeless = [name for name in names if family.place_of(name) is None]
    if homeless and not reasons:
        reasons.append(f"{homeless[0]} is not part of it ({len(homeless)} parameters have none)")
    return reasons
