"""The sizes of a model: parameters, and the FLOPs of a step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainer.recipe.model_options import ATTENTION, BLOCK, NONE
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import (
    Parameter,
    block_parameters,
    embedding_parameters,
    final_parameters,
    output_parameters,
    word_embedding,
)

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


#: Dense TFLOP/s of one device in bf16 and fp16 with fp32 sums, as its maker states them; the first name that fits.
_PEAKS: tuple[tuple[str, float], ...] = (
    (r"\bGB200\b", 2500.0),
    (r"\bB200\b", 2250.0),
    (r"\b(H200|GH200)\b", 989.4),
    (r"\bH100 PCIe\b", 756.0),
    (r"\bH100 NVL\b", 835.0),
    (r"\bH100\b", 989.4),
    (r"\bA100\b", 312.0),
    (r"\bA40\b", 149.7),
    (r"\bA30\b", 165.0),
    (r"\bA10\b", 125.0),
    (r"\bL40S\b", 362.0),
    (r"\bL4\b", 121.0),
    (r"\bRTX 4090\b", 165.2),
    (r"\bRTX 3090\b", 71.0),
    (r"\bMI300X\b", 1307.4),
    (r"\bMI250X\b", 191.5),  # of one of its two halves, which are a device each
)
#: These compute in fp16 alone.
_PEAKS_FP16: tuple[tuple[str, float], ...] = ((r"\bV100-PCIE\b", 112.0), (r"\bV100\b", 125.0))


def peak_tflops_of(device: str, precision: str) -> float | None:
    """Dense TFLOP/s of the device of that name in bf16 or fp16; None for one that is not known, and in fp32."""
    if precision not in ("bf16", "fp16"):
        return None
    known = _PEAKS + (_PEAKS_FP16 if precision == "fp16" else ())
    return next((peak for name, peak in known if re.search(name, device)), None)


@dataclass(frozen=True)
class Speed:
    """How fast some steps were; all of each rank's device."""

    hardware_tflops: float
    model_tflops: float
    mfu: float | None  # 0 to 1; None without a peak
    tokens_per_second: float


@dataclass(frozen=True)
class Throughput:
    """What it takes to say of so many samples in so many seconds how fast that is."""

    shape: ModelShape
    sequence_length: int
    ranks: int
    recompute: str  # as `recomputation.recomputed` says it
    peak_tflops: float | None = None

    def of(self, samples: int, seconds: float) -> Speed:
        """The speed of steps on `samples` samples, all replicas' together, that took `seconds`."""
        model, hardware = (
            tflops_per_gpu(self.shape, samples, self.sequence_length, seconds, self.ranks, *passes)
            for passes in ((MODEL_PASSES,), PASSES[self.recompute])
        )
        return Speed(
            hardware_tflops=hardware,
            model_tflops=model,
            mfu=model / self.peak_tflops if self.peak_tflops else None,
            tokens_per_second=samples * self.sequence_length / (seconds * self.ranks),
        )
