"""What a checkpoint is a checkpoint of, as its manifest keeps it: model, layout, precision, training, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.recipe.identity import EVALUATION_DATA, settings_in_force, training_facts
from trainer.recipe.layout import Layout
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.vocabulary import Vocabulary


def layout_facts(options: Mapping[str, Any], world_size: int) -> dict[str, Any]:
    """What decides how the weights and optimizer states are cut into files."""
    layout = Layout.of(options, world_size)
    return {
        "tensor": layout.tensor,
        "pipeline": layout.pipeline,
        "data": layout.data,
        "world_size": layout.world_size,
        "partition_method": options["pp_partition_method"],
        "zero_stage": 1,  # what --zero-stage 0 means too
        "optimizer": options["optimizer"],
    }


@dataclass(frozen=True)
class Identity:
    """What a checkpoint of a training is a checkpoint of."""

    model: dict[str, Any]
    layout: dict[str, Any]
    precision: str
    training: dict[str, Any] = field(default_factory=dict)  # those of `identity.TRAINING` that are known
    settings: dict[str, Any] = field(default_factory=dict)  # those of `identity.SETTINGS` in force, EVALUATION_DATA

    @classmethod
    def of(
        cls, options: Mapping[str, Any], world_size: int, vocabulary: Vocabulary, data: Mapping[str, Any] | None = None
    ) -> Identity:
        """Of the training that the options describe. Raises ValueError when the ranks do not divide.

        data: `data_identity.data_facts`, where somebody has looked.
        """
        shape, looked = ModelShape.of(options, vocabulary), data or {}
        evaluated = {name: looked[name] for name in EVALUATION_DATA if name in looked}
        trained = {name: value for name, value in looked.items() if name not in evaluated}
        return cls(
            model=shape.facts(),
            layout=layout_facts(options, world_size),
            precision=shape.precision,
            training={**training_facts(options), **trained},
            settings={**settings_in_force(options), **evaluated},
        )
