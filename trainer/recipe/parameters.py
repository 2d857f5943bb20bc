"""The table of the model's parameters: name, size, split, initial values, and weight decay.

The model is built from this table, and its optimizer groups and sizes follow from it. A checkpoint has a file for each
layer of the pipeline with parameters. The pipeline's layers have Megatron-DeepSpeed's numbers: 1 embedding, 3 ... L+2
blocks, L+4 final LayerNorm. The output layer, L+5, is the embedding's weight unless it is untied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trainer.recipe.model_shape import ModelShape

EMBEDDING_LAYER = 1
FIRST_BLOCK_LAYER = 3
#: The full name of a separate output layer's weight.
OUTPUT_WEIGHT = "output_layer.weight"
# The start of the full name of every parameter of a block.
_BLOCKS = "layers."


@dataclass(frozen=True)
class Parameter:
    """One whole parameter, before tensor-parallel ranks share it.

    Its initial values have a normal distribution of `initial_mean` and `initial_std`, which may be 0.
    """

    layer: int  # of the pipeline: the number of the checkpoint's file
    name: str  # in that file, e.g. `self_attention.dense.weight`
    full_name: str  # in the model, e.g. `layers.0.self_attention.dense.weight`; it seeds the initial values
    shape: tuple[int, ...]
    decays: bool  # True for weights, False for biases and LayerNorms
    initial_mean: float = 0.0
    initial_std: float = 0.0
    split_dim: int | None = None  # split over tensor-parallel ranks along it; None: each has all of it
    token_rows: int | None = None  # rows of vocabulary tokens; the rest is padding

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def rank_shape(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of each of `tensor` ranks' part. Raises ValueError if it cannot be split evenly."""
        return shared_shape(self.full_name, self.shape, self.split_dim, tensor)

    @property
    def padding_rows(self) -> int:
        """The rows at its end without a token of the vocabulary."""
        return 0 if self.token_rows is None else self.shape[0] - self.token_rows


def is_of_block(full_name: str) -> bool:
    """Return True if the parameter of this name in the model belongs to a transformer block."""
    return full_name.startswith(_BLOCKS)


def shared_shape(name: str, shape: tuple[int, ...], split_dim: int | None, tensor: int) -> tuple[int, ...]:
    """Return the shape of each of `tensor` ranks' part of a parameter split along `split_dim`; None: all of it.

    Raises ValueError, by its name, if it cannot be split evenly.
    """
    if split_dim is None:
        return shape
    whole = shape[split_dim]
    if whole % tensor:
        raise ValueError(f"{name}: {whole} is not divisible by TP {tensor}")
    return (*shape[:split_dim], whole // tensor, *shape[split_dim + 1 :])


def parameter_table(shape: ModelShape) -> Iterator[Parameter]:
    """Yield all parameters of the model, in its order."""
    yield from embedding_parameters(shape)
    for block in range(shape.layers):
        yield from block_parameters(shape, block)
    yield from final_parameters(shape)
    yield from output_parameters(shape)


def embedding_parameters(shape: ModelShape) -> Iterator[Parameter]:
    """Yield the embedding's: tokens, their LayerNorm if there is one, and learned positions if there are."""
    yield word_embedding(shape)
    if shape.embedding_layernorm:
        yield from _layernorm(shape, EMBEDDING_LAYER, "word_embeddings.norm.")
    if shape.positions:
        name = "position_embeddings.weight"
        size = (shape.positions, shape.hidden)
        yield Parameter(EMBEDDING_LAYER, name, name, size, decays=True, initial_std=shape.init_std)


def word_embedding(shape: ModelShape) -> Parameter:
    """Return the weight that the first pipeline stage embeds with. If it is tied, the last computes logits with it."""
    return _row_a_token(shape, EMBEDDING_LAYER, "word_embeddings.weight", "word_embeddings.weight")


def output_parameters(shape: ModelShape) -> Iterator[Parameter]:
    """Yield that of a separate output layer, if there is one."""
    if not shape.tied:
        yield _row_a_token(shape, shape.layers + 5, "weight", OUTPUT_WEIGHT)


def _row_a_token(shape: ModelShape, layer: int, name: str, full_name: str) -> Parameter:
    return Parameter(
        layer,
        name,
        full_name,
        (shape.vocabulary, shape.hidden),
        decays=True,
        initial_std=shape.init_std,
        split_dim=0,
        token_rows=shape.tokens,
    )


def block_parameters(shape: ModelShape, block: int) -> Iterator[Parameter]:
    """Yield those of transformer block `block`, counted from 0. Rows of `query_key_value` are [q, k, v] by head.

    If several heads share keys and values, rows are [their q, k, v] by group, as in Megatron-LM, so that ranks share
    whole groups. A gated MLP has separate weights for the gate and its input, and each is split alone.
    """
    layer, within = FIRST_BLOCK_LAYER + block, f"{_BLOCKS}{block}."
    hidden, ffn, std, output_std = shape.hidden, shape.ffn_hidden, shape.init_std, shape.output_init_std

    def linear(
        name: str, rows: int, columns: int, std: float, split_dim: int, biased: bool = shape.linear_biases
    ) -> Iterator[Parameter]:
        """Yield weight and bias of a layer that splits its output (dimension 0), or its input (1) but not the bias."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        yield Parameter(layer, weight, within + weight, (rows, columns), True, initial_std=std, split_dim=split_dim)
        if biased:
            yield Parameter(layer, bias, within + bias, (rows,), False, split_dim=None if split_dim else 0)

    yield from _layernorm(shape, layer, "input_layernorm.", within)
    rows = shape.attended + 2 * shape.groups * shape.head_size
    yield from linear("self_attention.query_key_value", rows, hidden, std, 0, shape.qkv_biases)
    if shape.query_key_norm:
        yield from _layernorm(shape, layer, "self_attention.q_layernorm.", within, shape.head_size)
        yield from _layernorm(shape, layer, "self_attention.k_layernorm.", within, shape.head_size)
    yield from linear("self_attention.dense", hidden, shape.attended, output_std, split_dim=1)
    yield from _layernorm(shape, layer, "post_attention_layernorm.", within)
    if shape.gate:
        yield from linear("mlp.gate", ffn, hidden, std, split_dim=0)
    yield from linear("mlp.dense_h_to_4h", ffn, hidden, std, split_dim=0)
    yield from linear("mlp.dense_4h_to_h", hidden, ffn, output_std, split_dim=1)


def final_parameters(shape: ModelShape) -> Iterator[Parameter]:
    """Yield those of the LayerNorm after the last block."""
    yield from _layernorm(shape, shape.layers + 4, "", "final_layernorm.")


def _layernorm(
    shape: ModelShape, layer: int, prefix: str, within: str = "", size: int | None = None
) -> Iterator[Parameter]:
    """Yield those of a LayerNorm over the hidden size or another, or of an RMSNorm, which has no bias."""
    of_weight = 0.0 if shape.norms_about_zero else 1.0
    for name, mean in (("weight", of_weight), ("bias", 0.0))[: 1 if shape.rms_norm else 2]:
        yield Parameter(layer, prefix + name, within + prefix + name, (size or shape.hidden,), False, initial_mean=mean)
