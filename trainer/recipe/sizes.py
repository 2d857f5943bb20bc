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
#: Training with Adam in mixed precision: a checkpoint's bytes, and 4 for the gradients.
TRAINING_BYTES_PER_PARAMETER = 18
#: Passes of a block's products: one forward, two backward; one more forward if recomputed.
MODEL_PASSES, HARDWARE_PASSES = 3, 4
#: The hardware's passes, of products with weights and of attention's own two, by kind of recomputation.
PASSES = {
    NONE: (MODEL_PASSES, MODEL_PASSES),
    ATTENTION: (MODEL_PASSES, HARDWARE_PASSES),
    BLOCK: (HARDWARE_PASSES, HARDWARE_PASSES),
}


def parameters(shape: ModelShape) -> int:
    """Return the number of trained parameters, with a tied embedding counted once."""
    ends = (embedding_parameters(shape), final_parameters(shape), output_parameters(shape))
    return sum(map(_size, ends)) + shape.layers * parameters_of_block(shape)


def parameters_of_block(shape: ModelShape) -> int:
    """Return the parameters of one transformer block: attention, MLP, two LayerNorms, and its biases."""
    return _size(block_parameters(shape, 0))


def parameters_outside_embeddings(shape: ModelShape) -> int:
    """Return the parameters without rows of tokens, also of a separate output layer, and learned positions."""
    rows = [one for one in embedding_parameters(shape) if one.name.endswith("_embeddings.weight")]
    return parameters(shape) - _size(rows) - _size(output_parameters(shape))


def parameters_of_ranks(shape: ModelShape, stages: Sequence[int], tensor: int) -> list[int]:
    """Return the parameters on a rank of each pipeline stage. `stages` are the numbers of blocks.

    Parameters that tensor-parallel ranks share count by their part, replicated ones whole. The word embedding is on
    the first stage, and the output layer on the last: the same weight, or a separate one. Raises ValueError if
    `tensor` ranks cannot share evenly.
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
    """Return 12h^2 + 13h, for a block whose feed-forward size is 4h."""
    return (12 * hidden + 13) * hidden


def formula_parameters(layers: int, hidden: int, sequence_length: int, vocabulary: int) -> int:
    """Return L(12h^2+13h) + Vh + sh + 2h, the usual formula, with learned positions and no embedding LayerNorm."""
    return layers * formula_block_parameters(hidden) + rest_parameters(hidden, sequence_length, vocabulary)


def rest_parameters(hidden: int, sequence_length: int, vocabulary: int) -> int:
    """Return that formula's part outside the blocks: Vh + sh + 2h."""
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
    attention_passes: those of 4sh, if they differ. Heads of another width than h / heads count with
    their own, and in a window the keys outside it do not count.
    """
    hidden, sequence = shape.hidden, sequence_length
    linear = sum(one.size for one in block_parameters(shape, 0) if len(one.shape) == 2)
    window = min(shape.window or sequence, sequence)
    # Without a window, all keys count, as in the formula; with one, as many fewer as the mask of all leaves out.
    share = window * (2 * sequence + 1 - window) / (sequence * (sequence + 1))
    of_attention = shape.layers * 4 * sequence * share * shape.attended
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
    """Return TFLOP/s of each of `gpus` GPUs if a step on `batch_size` samples takes `seconds`."""
    return step_flops(shape, batch_size, sequence_length, passes, attention_passes) / (seconds * gpus * 1e12)


#: Dense TFLOP/s of one device in bf16 and fp16 with fp32 sums, by its maker. The first name that fits counts.
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
    (r"\bMI250X\b", 191.5),  # of one of its two halves, each of which is a device
)
#: Devices without bf16.
_PEAKS_FP16: tuple[tuple[str, float], ...] = ((r"\bV100-PCIE\b", 112.0), (r"\bV100\b", 125.0))


def peak_tflops_of(device: str, precision: str) -> float | None:
    """Return the device's dense TFLOP/s in bf16 or fp16; None if it is unknown, and in fp32."""
    if precision not in ("bf16", "fp16"):
        return None
    known = _PEAKS + (_PEAKS_FP16 if precision == "fp16" else ())
    return next((peak for name, peak in known if re.search(name, device)), None)


@dataclass(frozen=True)
class Speed:
    """The speed of some steps; all values per device."""

    hardware_tflops: float
    model_tflops: float
    mfu: float | None  # 0 to 1; None if the peak is unknown
    tokens_per_second: float


@dataclass(frozen=True)
class Throughput:
    """The facts needed to compute a speed from samples and seconds."""

    shape: ModelShape
    sequence_length: int
    ranks: int
    recompute: str  # a result of `recomputed`
    peak_tflops: float | None = None

    def of(self, samples: int, seconds: float) -> Speed:
        """Return the speed of steps on `samples` samples of all replicas that took `seconds`."""
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
