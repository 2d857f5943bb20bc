"""The bytes that one micro-batch's forward pass keeps on a rank for the backward pass. Pure, without torch.

The numbers count the tensors that autograd holds, each storage once, as torch's kernels keep them. A test compares
them on a CPU with the saved tensors, byte for byte. Attention's weights are kept only by the softmax kernels, and with
attention dropout on a CPU.

Letters: h hidden size, f feed-forward size, d head size, t tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.recipe.model_options import ATTENTION, BLOCK, NONE, is_half, masks_attention, precision_of
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import word_embedding

_FP32 = 4
#: Families of the trainer's own kernels that keep other tensors than torch does.
NORMS, GATES, RESIDUALS, ATTENTION_KERNELS, LOSS = "norms", "gates", "residuals", "attention", "cross entropy"
# ALiBi adds at least so many features, until a head's size is a multiple of this.
_ALIBI_ALIGNMENT, _ALIBI_FEATURES = 8, 4
#: The softmax kernels keep b n s^2 weights for the backward pass. Above this, extra head features cost less.
MOST_SOFTMAX_SEQUENCE = 4096


def attends_by_softmax(options: Mapping[str, Any], before_ampere: bool) -> bool:
    """Return True if attention on a GPU uses the softmax kernels between two products, provided they are built.

    before_ampere: the GPU's compute capability is below 8.0. With --attention auto they are used for ALiBi where torch
    has no flash attention: on such a GPU, and in fp32.
    """
    if options["attention"] == "softmax":
        return True
    if masks_attention(options):
        return False
    unasked = options["attention"] == "auto" and options["kernels"] == "auto" and not options["attention_dropout"]
    has_no_flash = before_ampere or precision_of(options) == "fp32"
    is_fused = not options["no_masked_softmax_fusion"] and options["seq_length"] <= MOST_SOFTMAX_SEQUENCE
    return unasked and has_no_flash and is_fused and options["position_embedding_type"] == "alibi"


def kernel_families(options: Mapping[str, Any]) -> frozenset[str]:
    """Return the families that the trainer's kernels compute with these options, provided they are built."""
    if options["kernels"] == "torch":
        return frozenset()
    left = {
        GATES: options["no_bias_swiglu_fusion"],
        RESIDUALS: options["no_bias_dropout_fusion"],
        ATTENTION_KERNELS: options["attention"] not in ("auto", "C++"),
    }
    return frozenset(one for one in (NORMS, GATES, RESIDUALS, ATTENTION_KERNELS, LOSS) if not left.get(one))


def alibi_feature_count(head_size: int) -> int:
    """Return the number of features that ALiBi adds to a head: at least 4, up to a multiple of 8 for the kernels."""
    return -(-(head_size + _ALIBI_FEATURES) // _ALIBI_ALIGNMENT) * _ALIBI_ALIGNMENT - head_size


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch on one of `tensor` ranks that share each layer.

    on_cpu: CPU kernels keep other tensors than GPU kernels; its products must support the precision.
    sequence_parallel: each rank has a slice of what all ranks otherwise hold. split_checkpoints: the input of
    recomputation is split. keeps_weights: attention uses the softmax kernels between two products. kernels: the
    families that the trainer's own kernels compute (`kernel_families`).
    """

    shape: ModelShape
    samples: int
    length: int
    tensor: int = 1
    recompute: str = NONE
    sequence_parallel: bool = False
    split_checkpoints: bool = False
    on_cpu: bool = False
    keeps_weights: bool = False
    kernels: frozenset[str] = frozenset()

    @property
    def tokens(self) -> int:
        """Tokens of all samples."""
        return self.samples * self.length

    @property
    def element_bytes(self) -> int:
        """Bytes of a number of the residual stream."""
        return 2 if is_half(self.shape.precision) else _FP32

    @property
    def stream_bytes(self) -> int:
        """Bytes of the residual stream on this rank, once."""
        return self.tokens * self.shape.hidden * self.element_bytes // self._cut

    @property
    def whole_stream_bytes(self) -> int:
        """Bytes of the residual stream of all tensor-parallel ranks."""
        return self.tokens * self.shape.hidden * self.element_bytes

    @property
    def width_bytes(self) -> int:
        """Bytes of the MLP's width on this rank, once."""
        return self.tokens * self.width * self.element_bytes

    def scattering_bytes(self) -> int:
        """Return the bytes that summing the stream into slices needs next to its input.

        That is the slice and, for several samples, the input ordered by rank; gloo copies its input.
        """
        return self.stream_bytes + self.whole_stream_bytes * ((self.samples > 1) + self.on_cpu)

    @property
    def _cut(self) -> int:
        return self.tensor if self.sequence_parallel else 1

    @property
    def _heads(self) -> int:
        return self.shape.heads // self.tensor

    @property
    def _groups(self) -> int:
        return max(1, self.shape.groups // self.tensor)

    def block_bytes(self) -> int:
        """Return the bytes that one block keeps; with recomputation of blocks, only its input."""
        if self.recompute == BLOCK:
            return self.stream_bytes // (self.tensor if self.split_checkpoints and not self.sequence_parallel else 1)
        return self.whole_block_bytes()

    def whole_block_bytes(self) -> int:
        """Return the bytes that a block keeps while it is computed, also during recomputation."""
        attention = self.recomputed_attention_bytes() if self.recompute == ATTENTION else self.attention_bytes()
        masks = 2 * self._dropout_mask_bytes()
        return 2 * self.norm_bytes() + self._inputs_of_products() + attention + self.mlp_bytes() + masks

    def _dropout_mask_bytes(self) -> int:
        """Return the bytes of one dropout mask of the residual stream. Kernels draw it again from its seeds."""
        is_kept = self.shape.hidden_dropout and RESIDUALS not in self.kernels
        return self.tokens * self.shape.hidden // self._cut if is_kept else 0

    def norm_bytes(self) -> int:
        """Return the bytes of a norm of the residual stream: its input and its statistics."""
        return self._norm_bytes(self.tokens // self._cut, self.shape.hidden, self.element_bytes, keeps_input=True)

    def _norm_bytes(self, rows: int, width: int, element_bytes: int, keeps_input: bool) -> int:
        """Return the bytes of a norm. keeps_input: no other operation holds its input."""
        if NORMS in self.kernels:
            statistics = 2 if self.on_cpu or not self.shape.rms_norm else 1  # on a CPU in one piece of memory
            return rows * (statistics * _FP32 + (width * element_bytes if keeps_input else 0))
        if self.shape.rms_norm and self.on_cpu:  # made of single operations, which compute in fp32
            kept = 2 if keeps_input or element_bytes < _FP32 else 1
            return rows * (kept * width + 1) * _FP32
        of_row = _FP32 if self.shape.rms_norm else 2 * (element_bytes if self.on_cpu else _FP32)
        return rows * (of_row + (width * element_bytes if keeps_input else 0))

    def _inputs_of_products(self) -> int:
        """Return the bytes of the norms' outputs for the products of queries, keys, values and the MLP."""
        return 2 * self.tokens * self.shape.hidden // self._cut * self.element_bytes

    def recomputed_attention_bytes(self) -> int:
        """Return the bytes kept of attention with recomputation: its input and output."""
        return (self._qkv_numbers() + self._mixed_numbers()) * self.element_bytes

    def attention_bytes(self) -> int:
        """Return the bytes kept between the product of queries, keys and values and the product after attention."""
        shape, size = self.shape, self.shape.head_size
        wide_size = size + (alibi_feature_count(size) if shape.alibi else 0)
        heads = self.tokens * self._heads
        kept = (self._queries_keys_values(wide_size) + self._head_norms_numbers()) * self.element_bytes
        kept_beside = self._head_norms_bytes()
        if shape.rotary_size:  # sines and cosines, shared by all blocks
            kept_beside += self.length * shape.rotary_size * self.element_bytes
        if self._by_attention_kernels:  # in place, but for queries and keys that are rotated or normalized
            numbers = self._qkv_numbers() + self._mixed_numbers()
            if shape.rotary_size or shape.query_key_norm:
                numbers += self.tokens * (self._heads + self._groups) * size
            return kept_beside + numbers * self.element_bytes + heads * _FP32
        kept += kept_beside
        if self.keeps_weights:
            without_features = self._queries_keys_values(size) + self._head_norms_numbers()
            weights_and_mixed = heads * self.length + self._mixed_numbers()
            return kept_beside + (without_features + weights_and_mixed) * self.element_bytes
        if shape.attention_dropout and self.on_cpu:
            weights = heads * self.length
            masks = weights + self.length**2
            return kept + weights * (_FP32 + self.element_bytes) + masks + self._mixed_numbers() * self.element_bytes
        kept += heads * (wide_size * self.element_bytes + _FP32)  # the output, and the sums of its softmax
        # The next product reads the output in place if it is stored token by token, as the queries are.
        copied = shape.alibi or shape.rotary_size or shape.query_key_norm or shape.attention_dropout
        return kept + (self._mixed_numbers() * self.element_bytes if copied else 0)

    @property
    def _by_attention_kernels(self) -> bool:
        """True where attention's own kernels compute it: without dropout and masks, on a CPU."""
        masked = self.shape.window or self.shape.splits_documents
        return ATTENTION_KERNELS in self.kernels and self.on_cpu and not (self.shape.attention_dropout or masked)

    def attention_gradients_bytes(self) -> int:
        """Return the bytes of the gradients of attention's output, queries, keys and values, and of kept weights."""
        numbers = self._mixed_numbers() + self._qkv_numbers()
        if self.keeps_weights or (self.shape.attention_dropout and self.on_cpu):
            numbers += 2 * self.tokens * self._heads * self.length
        return numbers * self.element_bytes

    def mask_bytes(self) -> tuple[int, int]:
        """Return the bytes of attention's masks, which all blocks share: of all micro-batches together, and of this."""
        shape, one = self.shape, self.length**2 * self.element_bytes
        own = self.samples * one if shape.splits_documents else 0
        return one if shape.window or own else 0, own

    def _queries_keys_values(self, wide_size: int) -> int:
        shape = self.shape
        each = self.tokens * self._heads * wide_size
        if shape.alibi or self._groups != self._heads or (shape.attention_dropout and self.on_cpu):
            return 3 * each
        return self._qkv_numbers() + (2 * each if shape.rotary_size or shape.query_key_norm else 0)

    def _head_norms_numbers(self) -> int:
        """Return the numbers of the inputs of query and key norms that no other operation holds."""
        shape = self.shape
        holds_own = NORMS in self.kernels or (shape.rms_norm and self.on_cpu and self.element_bytes < _FP32)
        if not shape.query_key_norm or holds_own:
            return 0
        shared = self._groups != self._heads
        held = not (shape.alibi or shared or (shape.attention_dropout and self.on_cpu))
        return (0 if held else self._qkv_numbers()) + (self._mixed_numbers() if shared else 0)

    def _head_norms_bytes(self) -> int:
        if not self.shape.query_key_norm:
            return 0
        rows, size = self.tokens * (self._heads + self._groups), self.shape.head_size
        return self._norm_bytes(rows, size, self.element_bytes, keeps_input=NORMS in self.kernels)

    def _qkv_numbers(self) -> int:
        return self.tokens * (self._heads + 2 * self._groups) * self.shape.head_size

    def _mixed_numbers(self) -> int:
        return self.tokens * self._heads * self.shape.head_size

    def mlp_bytes(self) -> int:
        """Return the bytes of the MLP.

        A plain MLP keeps its width twice: before and after GeLU. A gated one keeps the gate before and after its
        activation, the other factor, and the product; liglu, reglu and all gates by kernels keep the gate once.
        """
        keeps_once = self.shape.gate in ("liglu", "reglu") or GATES in self.kernels
        before = 1 if not self.shape.gate else 2 if keeps_once else 3
        return self.width_bytes * (before + 1)

    @property
    def width(self) -> int:
        """Width of the MLP on this rank."""
        return self.shape.ffn_hidden // self.tensor

    def embedding_bytes(self) -> int:
        """Return the bytes of the embedding's norm and dropout mask, as far as the model has them."""
        mask = self._dropout_mask_bytes()
        return mask + (self.norm_bytes() if self.shape.embedding_layernorm else 0)

    def final_bytes(self) -> int:
        """Return the bytes of the final norm and of its output."""
        return self.norm_bytes() + self.stream_bytes

    def loss_bytes(self, sums_weight: bool = False) -> int:
        """Return the peak bytes of the loss besides its input. The loss computes its gradients in the forward pass.

        The peak is the larger of two moments: one chunk's logits, in the model's type with kernels, else in fp32 and,
        for 16-bit products, in 16 bits too, with the stream's gradient; or, later, the gradients of the stream and of
        the final norm's input. Sequence parallelism gathers the stream, and later sums its gradient into slices.
        sums_weight: the engine has no fp32 sum of the weight's gradients, so the loss holds one micro-batch's, in fp32
        and then in the weight's type.
        """
        weight = word_embedding(self.shape).size // self.tensor if sums_weight else 0
        rows = self.shape.vocabulary // self.tensor
        logits = chunk_tokens(self.tokens, rows, "cpu" if self.on_cpu else "cuda") * rows
        half = self.element_bytes if is_half(self.shape.precision) else 0
        of_logit = half if half and LOSS in self.kernels else _FP32 + half
        stream = self.whole_stream_bytes
        forward = stream + logits * of_logit + weight * (_FP32 + self.element_bytes)
        if self.sequence_parallel:
            return max(stream + forward, stream + self.scattering_bytes() + weight * self.element_bytes)
        return max(forward, 2 * stream + weight * self.element_bytes)


#: Smallest number of tokens of a chunk, for memory traffic: 5 % of a CPU core's time, hidden by products on a GPU.
LEAST_TOKENS = {"cpu": 512, "cuda": 2048}
#: Smallest number of logits of a chunk: fits a CPU's last cache, and hides the launch of a GPU's kernels.
LEAST_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 26}


def chunks_of(tokens: int, rows: int, device: str) -> list[slice]:
    """Divide a micro-batch's tokens into chunks of nearly equal size for products with `rows` of the vocabulary.

    A chunk has at least LEAST_TOKENS tokens and LEAST_LOGITS logits, if there are so many, and less than twice the
    larger of both. device: "cpu" or "cuda".
    """
    count = _count(tokens, rows, device)
    return [slice(one * tokens // count, (one + 1) * tokens // count) for one in range(count)]


def chunk_tokens(tokens: int, rows: int, device: str) -> int:
    """Return the tokens of the largest chunk."""
    return -(-tokens // _count(tokens, rows, device))


def _count(tokens: int, rows: int, device: str) -> int:
    return max(1, tokens // max(1, LEAST_TOKENS[device], LEAST_LOGITS[device] // rows))
