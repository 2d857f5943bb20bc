"""Counting a GPT's parameters, floating-point operations and bytes. Pure arithmetic, without torch.

Letters as in the papers: L layers, h hidden size, f feed-forward size, s sequence length, V vocabulary, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30
HALF_BYTES_PER_PARAMETER = 2
#: A whole checkpoint with Adam: 2 half-precision + 4 fp32 weights + 8 for the two moments.
CHECKPOINT_BYTES_PER_PARAMETER = 14
#: Training with Adam in mixed precision: what a checkpoint has, and 4 for the gradients.
TRAINING_BYTES_PER_PARAMETER = 18
#: Matrix products per parameter and token: one forward, two backward; one more forward with recomputed activations.
MODEL_PASSES, HARDWARE_PASSES = 3, 4


@dataclass(frozen=True)
class ModelShape:
    """What decides how large a GPT is. `vocabulary` is the padded one, as the embedding really has it."""

    layers: int
    hidden: int
    heads: int
    sequence_length: int
    vocabulary: int
    feed_forward: int | None = None  # None: 4 * hidden
    positions: int = 0  # rows of learned position embeddings; 0 with ALiBi
    embedding_layernorm: bool = False
    tied_head: bool = True

    @property
    def ffn(self) -> int:
        return 4 * self.hidden if self.feed_forward is None else self.feed_forward


def block_parameters(hidden: int, feed_forward: int | None = None) -> int:
    """One transformer block: attention, MLP, two LayerNorms, biases everywhere; 12h^2 + 13h where f = 4h."""
    ffn = 4 * hidden if feed_forward is None else feed_forward
    attention = 4 * hidden * hidden + 4 * hidden
    mlp = 2 * hidden * ffn + ffn + hidden
    return attention + mlp + 4 * hidden


def parameters(shape: ModelShape) -> int:
    """Every trained parameter of the model, a tied head counted once."""
    embeddings = (shape.vocabulary * (1 if shape.tied_head else 2) + shape.positions) * shape.hidden
    norms = 2 * shape.hidden * (2 if shape.embedding_layernorm else 1)
    return shape.layers * block_parameters(shape.hidden, shape.feed_forward) + embeddings + norms


def formula_parameters(layers: int, hidden: int, sequence_length: int, vocabulary: int) -> int:
    """L(12h^2+13h) + Vh + sh + 2h: the formula people print. It counts learned positions and no embedding LayerNorm."""
    return layers * block_parameters(hidden) + rest_parameters(hidden, sequence_length, vocabulary)


def rest_parameters(hidden: int, sequence_length: int, vocabulary: int) -> int:
    """What that formula counts outside the blocks: Vh + sh + 2h."""
    return (vocabulary + sequence_length + 2) * hidden


def step_flops(shape: ModelShape, batch_size: int, passes: int = HARDWARE_PASSES) -> float:
    """Floating-point operations of one step on `batch_size` samples: 24 * passes * B s L h^2 (1 + s/6h + V/16Lh).

    With `MODEL_PASSES` what the model needs, with `HARDWARE_PASSES` what is done when activations are recomputed.
    Source: Narayanan et al., arXiv 2104.04473, equation 3, which has f = 4h.
    """
    layers, hidden, sequence = shape.layers, shape.hidden, shape.sequence_length
    correction = 1 + sequence / (6 * hidden) + shape.vocabulary / (16 * layers * hidden)
    return 24 * passes * batch_size * sequence * layers * hidden**2 * correction


def tflops_per_gpu(
    shape: ModelShape, batch_size: int, seconds: float, gpus: int, passes: int = HARDWARE_PASSES
) -> float:
    """TFLOP/s of each of `gpus` GPUs when a step on `batch_size` samples takes `seconds`."""
    return step_flops(shape, batch_size, passes) / (seconds * gpus * 1e12)
