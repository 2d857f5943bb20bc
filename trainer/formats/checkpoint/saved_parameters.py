"""The parameters of a checkpoint, as its manifest names them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from trainer.formats.checkpoint.manifest import Manifest, SavedParameter
from trainer.formats.errors import CheckpointError
from trainer.recipe.model_options import GATES
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import parameter_table

POSITIONS = ("absolute", "alibi", "rope")
_POSITIONS = "max_position_embeddings"
# Far beyond every model: a number that somebody's hand has made so large fills the memory before it is found wrong.
_LARGEST = {
    "num_layers": 100_000,
    **dict.fromkeys(
        (
            "hidden_size",
            "num_attention_heads",
            "ffn_hidden_size",
            "vocab_size",
            "padded_vocab_size",
            "num_query_groups",
            _POSITIONS,
        ),
        (1 << 31) - 1,
    ),
}
#: What came to the trainer later: a model that does not say it has it not.
_LATER: dict[str, tuple[Any, ...]] = {
    "normalization": ("LayerNorm", "RMSNorm"),
    "glu_activation": (None, *GATES),
    **dict.fromkeys(
        (
            "embed_layernorm",
            "disable_bias_linear",
            "add_qkv_bias",
            "untie_embeddings_and_output_weights",
            "qk_layernorm",
        ),
        (False, True),
    ),
}
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "padded_vocab_size")


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
    """The checkpoint's parameters, which follow from its model; one of the first schema does not name them.

    Raises CheckpointError where the model is described by too little, or by what cannot be, and where the parameters
    are another model's.
    """
    _refuse_no_model(manifest.model)
    try:
        of_model = saved_parameters(ModelShape.of_facts(manifest.model))
    except KeyError as error:
        raise CheckpointError(f"the manifest's model does not say {error}") from None
    for own, known in zip_longest(manifest.parameters or of_model, of_model):
        if own != known:
            name = (own or known).name
            raise CheckpointError(f"the manifest's parameters are not those of its model, the first other is {name!a}")
    return of_model


def _refuse_no_model(model: Mapping[str, Any]) -> None:
    for name in (*_NEEDED, *(name for name in model if name in _LARGEST)):
        if name not in model:
            raise CheckpointError(f"the manifest's model does not say '{name}'")
        value, may_be_none = model[name], name not in _NEEDED
        is_size = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _LARGEST[name]
        if not is_size and not (may_be_none and value is None):
            raise CheckpointError(f"the manifest's model cannot be right: {name} is {str(value)[:40]!a}")
    if model.get("position_embedding_type") not in POSITIONS:
        raise CheckpointError(f"the manifest's model has neither of {', '.join(POSITIONS)} as its positions")
    for name, allowed in _LATER.items():
        value = model.get(name, allowed[0])
        if not any(value is one or (isinstance(one, str) and value == one) for one in allowed):
            raise CheckpointError(f"the manifest's model cannot be right: {name} is {str(value)[:40]!a}")
    heads, groups = model["num_attention_heads"], model.get("num_query_groups")
    if groups is not None and heads % groups:
        raise CheckpointError(f"the manifest's model has {heads} heads in {groups} groups")
    tokens, rows, learned = (model.get(name) for name in ("vocab_size", "padded_vocab_size", _POSITIONS))
    if tokens is not None and rows is not None and tokens > rows:
        raise CheckpointError(f"the manifest's model has {tokens} tokens in {rows} rows")
    if model.get("position_embedding_type") == "absolute" and learned is None:
        raise CheckpointError("the manifest's model does not say how many positions it has")
