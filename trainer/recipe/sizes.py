"""Counting a GPT's parameters, floating-point operations and bytes. Pure arithmetic, without torch.

Letters as in the papers: L layers, h hidden size, f feed-forward size, s sequence length, V vocabulary, B batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import (
    Parameter,
    block_parameters,
    embedding_parameters,
    final_parameters,
    output_parameters,
    word_embedding,
)
from trainer.recipe.recomputation import ATTENTION, BLOCK, NONE

GIB = 2**30
HALF_BYTES_PER_PARAMETER = 2
#: A whole checkpoint with Adam: 2 half-precision + 4 fp32 weights + 8 for the two moments.
CHECKPOINT_BYTES_PER_PARAMETER = 14
#: Training with Adam in mixed precision: what a checkpoint has, and 4 for the gradients.
TRAINING_BYTES_PER_PARAMETER = 18
#: Times that the products of a block are computed: one forward, two backward; one more forward if recomputed.
MODEL_PASSES, HARDWARE_PASSES = 3, 4
#: The hardware's, of products with weights and of attention's own two, by what is recomputed.
PASSES = {
    NONE: (MODEL_PASSES, MODEL_PASSES),
    ATTENTION: (MODEL_PASSES, HARDWARE_PASSES),
    BLOCK: (HARDWARE_PASSES, HARDWARE_PASSES),
}


def parameters(shape: ModelShape) -> int:
    """Every trained parameter of the model, the embedding that is the output layer too counted once."""
    ends = (embedding_parameters(shape), final_parameters(shape), output_parameters(shape))
    return sum(map(_size, ends)) + shape.layers * parameters_of_block(shape)


def parameters_of_block(shape: ModelShape) -> int:
    """One transformer block: attention, MLP, two LayerNorms, and the biases that there are."""
    return _size(block_parameters(shape, 0))


def parameters_outside_embeddings(shape: ModelShape) -> int:
    """All parameters but the rows of tokens, also those of an output layer of its own, and of learned positions."""
    rows = [one for one in embedding_parameters(shape) if one.name.endswith("_embeddings.weight")]
    return parameters(shape) - _size(rows) - _size(output_parameters(shape))


def parameters_of_ranks(shape: ModelShape, stages: Sequence[int], tensor: int) -> list[int]:
    """Parameters that a rank of each pipeline stage holds, the stages having so many blocks each.

    What tensor-parallel ranks share counts by its part, what each of them has counts whole. The word embedding is on
    the first stage, and on the last the output layer: the same weight, or one of its own. Raises ValueError
    when `tensor` ranks cannot share alike.
    """
    block = _size(block_parameters(shape, 0), tensor)
    held = [blocks * block for blocks in stages]
    held[0] += _size(embedding_parameters(shape), tensor)
    held[-1] += _size(final_parameters(shape), tensor) + _size(output_parameters(shape), tensor)
    if shape.tied and len(stages) > 1:
        held[-1] += _size([word_embedding(shape)], tensor)
    return held


def _size(table: Iterable[Parameter], tensor: int = 1) -> int:
    return sum(math.prod(one.rank_shape(tensor)) for one in table)


def formula_block_parameters(hidden: int) -> int:
    """12h^2 + 13h: a block whose feed-forward size is 4h."""
    return (12 * hidden + 13) * hidden


def formula_parameters(layers: int, hidden: int, sequence_length: int, vocabulary: int) -> int:
    """L(12h^2+13h) + Vh + sh + 2h: the formula people print. It counts learned positions and no embedding LayerNorm."""
    return layers * formula_block_parameters(hidden) + rest_parameters(hidden, sequence_length, vocabulary)


def rest_parameters(hidden: int, sequence_length: int, vocabulary: int) -> int:
    """What that formula counts outside the blocks: Vh + sh + 2h."""
    return (vocabulary + sequence_length + 2) * hidden


def step_flops(
    shape: ModelShape,
    batch_size: int,
    sequence_length: int,
    passes: int = HARDWARE_PASSES,
    attention_passes: int | None = None,
) -> float:
    """Return the floating-point operations of one step on `batch_size` samples: B s (L passes (2w + 4sh) + 6Vh).

    w: weights of a block's linear layers; a gated MLP and shared keys and values count by their own weights. The output
    layer's logits are never recomputed, so 6Vh does not depend on the passes. With `MODEL_PASSES` this is what the
    model needs, 72 B s L h^2 (1 + s/6h + V/12Lh) if w is 12h^2. With `HARDWARE_PASSES` it is what full recomputation
    executes, 96 B s L h^2 (1 + s/6h + V/16Lh): Narayanan et al., arXiv 2104.04473, equation 3.
    attention_passes: those of 4sh, if they differ.
    """
    hidden, sequence = shape.hidden, sequence_length
    linear = sum(one.size for one in block_parameters(shape, 0) if len(one.shape) == 2)
    of_attention = shape.layers * 4 * sequence * hidden
    of_blocks = passes * shape.layers * 2 * linear + (attention_passes or passes) * of_attention
    return batch_size * sequence * (of_blocks + 2 * MODEL_PASSES * shape.vocabulary * hidden)


def tflops_per_gpu(
    shape: ModelShape,
    batch_size: int,
    sequence_length: int,
    seconds: float,
    gpus: int,
    passes: int = HARDWARE_PASSES,
    attention_passes: int | None = None,
) -> float:
    """TFLOP/s of each of `gpus` GPUs when a step on `batch_size` samples takes `seconds`."""
    return step_flops(shape, batch_size, sequence_length, passes, attention_passes) / (seconds * gpus * 1e12)
