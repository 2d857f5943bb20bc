"""The parameters of a checkpoint, as its manifest names them."""

from __future__ import annotations

from trainer.formats.errors import CheckpointError
from trainer.formats.manifest import Manifest, SavedParameter
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import parameter_table


def saved_parameters(shape: ModelShape) -> tuple[SavedParameter, ...]:
    """All parameters of the model, in its order: a manifest's `parameters`."""
    return tuple(
        SavedParameter(
            name=one.full_name,
            layer=one.layer,
            name_in_layer=one.name,
            shape=one.shape,
            decays=one.decays,
            split_dim=one.split_dim,
            token_rows=one.token_rows,
        )
        for one in parameter_table(shape)
    )


def parameters_of(manifest: Manifest) -> tuple[SavedParameter, ...]:
    """The checkpoint's parameters; of the first schema, which does not name them, those of its model.

    Raises CheckpointError where the model is described by too little.
    """
    if manifest.parameters:
        return manifest.parameters
    try:
        return saved_parameters(ModelShape.of_facts(manifest.model))
    except KeyError as error:
        raise CheckpointError(f"the manifest's model does not say {error}, and it names no parameters") from None
