"""What the forward pass of one micro-batch keeps on a rank until the backward pass, in bytes. Pure, without torch.

Counted are the tensors that autograd holds, each storage once, as torch's kernels keep them: on a CPU a test holds this
to what is really saved, byte for byte. Attention's weights are never kept whole, but by the softmax kernels, and with
attention dropout on a CPU.

Letters: h hidden size, f feed-forward size, d head size, t tensor-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainer.recipe.model_options import ATTENTION, BLOCK, NONE, is_half, precision_of
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.parameters import word_embedding

_FP32 = 4
# ALiBi adds features to a head until it is a multiple of this with at least so many more.
_ALIBI_ALIGNMENT, _ALIBI_FEATURES = 8, 4


#: The softmax kernels keep b n s^2 weights for the backward pass: beyond this, extra features of heads cost less.
MOST_SOFTMAX_SEQUENCE = 4096


def attends_by_softmax(options: Mapping[str, Any], before_ampere: bool) -> bool:
    """Whether attention on a GPU is the softmax kernels between two products, where they are built.

    before_ampere: of the GPU. Unasked that is so with ALiBi where torch has no flash attention.
    """
    if options["attention"] == "softmax":
        return True
    unasked = options["attention"] == "auto" and options["kernels"] == "auto" and not options["attention_dropout"]
    has_no_flash = before_ampere or precision_of(options) == "fp32"
    is_fused = not options["no_masked_softmax_fusion"] and options["seq_length"] <= MOST_SOFTMAX_SEQUENCE
    return unasked and has_no_flash and is_fused and options["position_embedding_type"] == "alibi"


def alibi_feature_count(head_size: int) -> int:
    """Features that ALiBi adds to a head: four fit, and the sum is aligned as attention's kernels want rows."""
    return -(-(head_size + _ALIBI_FEATURES) // _ALIBI_ALIGNMENT) * _ALIBI_ALIGNMENT - head_size


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch on one rank of `tensor` that share each layer.

    on_cpu: there the kernels keep other things than on a GPU; wide: a CPU without 16-bit products computes attention in
    fp32 and keeps what it takes and gives so. With `sequence_parallel` what all ranks hold alike is cut by the
    sequence, and with `split_checkpoints` what recomputation starts from. keeps_weights: attention is the softmax
    kernels between two products.
    """

    shape: ModelShape
    samples: int
    length: int
    tensor: int = 1
    recompute: str = NONE
    sequence_parallel: bool = False
    split_checkpoints: bool = False
    on_cpu: bool = False
    wide: bool = False
    keeps_weights: bool = False

    @property
    def tokens(self) -> int:
        """Of all samples."""
        return self.samples * self.length

    @property
    def element_bytes(self) -> int:
        """Of a number of the residual stream."""
        return 2 if is_half(self.shape.precision) else _FP32

    @property
    def stream_bytes(self) -> int:
        """The residual stream once, as this rank holds it."""
        return self.tokens * self.shape.hidden * self.element_bytes // self._cut

    @property
    def _cut(self) -> int:
        return self.tensor if self.sequence_parallel else 1

    @property
    def _product_bytes(self) -> int:
        return _FP32 if self.wide else self.element_bytes

    @property
    def _heads(self) -> int:
        return self.shape.heads // self.tensor

    @property
    def _groups(self) -> int:
        return self.shape.groups // self.tensor

    def block_bytes(self) -> int:
        """All that one block keeps; with recomputation of blocks, what it starts from."""
        if self.recompute == BLOCK:
            return self.stream_bytes // (self.tensor if self.split_checkpoints and not self.sequence_parallel else 1)
        return self.whole_block_bytes()

    def whole_block_bytes(self) -> int:
        """What a block keeps while it is computed, also where it is computed again."""
        attention = self.recomputed_attention_bytes() if self.recompute == ATTENTION else self.attention_bytes()
        masks = 2 * self.tokens * self.shape.hidden // self._cut if self.shape.hidden_dropout else 0
        return 2 * self.norm_bytes() + self._inputs_of_products() + attention + self._mlp_bytes() + masks

    def norm_bytes(self) -> int:
        """A norm of the residual stream: what comes in, and its statistics."""
        return self._norm_bytes(self.tokens // self._cut, self.shape.hidden, self.element_bytes, keeps_input=True)

    def _norm_bytes(self, rows: int, width: int, element_bytes: int, keeps_input: bool) -> int:
        """keeps_input: what comes in is not held by anybody else."""
        if self.shape.rms_norm and self.on_cpu:  # made of single operations, which work in fp32
            kept = 2 if keeps_input or element_bytes < _FP32 else 1
            return rows * (kept * width + 1) * _FP32
        of_row = _FP32 if self.shape.rms_norm else 2 * (element_bytes if self.on_cpu else _FP32)
        return rows * (of_row + (width * element_bytes if keeps_input else 0))

    def _inputs_of_products(self) -> int:
        """What the norms give to the products that make queries, keys and values, and the MLP's width."""
        return 2 * self.tokens * self.shape.hidden // self._cut * self.element_bytes

    def recomputed_attention_bytes(self) -> int:
        """Of attention what is kept where its core is computed again: what goes in, and what comes out."""
        return (self._qkv_numbers() + self._mixed_numbers()) * self.element_bytes

    def attention_bytes(self) -> int:
        """Of attention all between the norm and what is added to the residual stream."""
        shape, size = self.shape, self.shape.head_size
        wide_size = size + (alibi_feature_count(size) if shape.alibi else 0)
        heads = self.tokens * self._heads
        kept = (self._queries_keys_values(wide_size) + self._head_norms_numbers()) * self._product_bytes
        kept_beside = self._head_norms_bytes()
        if shape.rotary_size:  # sines and cosines, which blocks share
            kept_beside += self.length * shape.rotary_size * self._product_bytes
        kept += kept_beside
        if self.keeps_weights:
            without_features = self._queries_keys_values(size) + self._head_norms_numbers()
            weights_and_mixed = heads * self.length + self._mixed_numbers()
            return kept_beside + (without_features + weights_and_mixed) * self.element_bytes
        if shape.attention_dropout and self.on_cpu:
            weights = heads * self.length
            masks = weights + self.length**2
            return kept + weights * (_FP32 + self._product_bytes) + masks + self._mixed_numbers() * self.element_bytes
        kept += heads * (wide_size * self._product_bytes + _FP32)  # what comes out, and the sums of its softmax
        # What comes out is what the next product takes where it lies there token by token, as the queries do.
        copied = shape.alibi or shape.rotary_size or shape.query_key_norm or self.wide or shape.attention_dropout
        return kept + (self._mixed_numbers() * self.element_bytes if copied else 0)

    def _queries_keys_values(self, wide_size: int) -> int:
        shape = self.shape
        each = self.tokens * self._heads * wide_size
        if shape.alibi or self._groups != self._heads or (shape.attention_dropout and self.on_cpu):
            return 3 * each
        return self._qkv_numbers() + (2 * each if shape.rotary_size or shape.query_key_norm else 0)

    def _head_norms_numbers(self) -> int:
        """What goes into the norms of queries and keys, where it is not held already."""
        shape = self.shape
        if not shape.query_key_norm or (shape.rms_norm and self.on_cpu and self._product_bytes < _FP32):
            return 0
        shared = self._groups != self._heads
        held = not (shape.alibi or shared or (shape.attention_dropout and self.on_cpu))
        return (0 if held else self._qkv_numbers()) + (self._mixed_numbers() if shared else 0)

    def _head_norms_bytes(self) -> int:
        if not self.shape.query_key_norm:
            return 0
        rows, size = self.tokens * (self._heads + self._groups), self.shape.head_size
        weights = 2 * size * (1 if self.shape.rms_norm else 2) * _FP32 if self.wide else 0
        return self._norm_bytes(rows, size, self._product_bytes, keeps_input=False) + weights

    def _qkv_numbers(self) -> int:
        return self.tokens * (self._heads + 2 * self._groups) * self.shape.head_size

    def _mixed_numbers(self) -> int:
        return self.tokens * self._heads * self.shape.head_size

    def _mlp_bytes(self) -> int:
        """A plain MLP keeps its width before and after GeLU; one with a gate, that, both factors and the product.

        Two gates are held once, before or after their activation.
        """
        before = 1 if not self.shape.gate else 2 if self.shape.gate in ("liglu", "reglu") else 3
        return self.tokens * self.width * (before + 1) * self.element_bytes

    @property
    def width(self) -> int:
        """The MLP's on this rank."""
        return self.shape.ffn_hidden // self.tensor

    def embedding_bytes(self) -> int:
        """Of the embedding: its norm and its dropout's mask, where there are."""
        mask = self.tokens * self.shape.hidden // self._cut if self.shape.hidden_dropout else 0
        return mask + (self.norm_bytes() if self.shape.embedding_layernorm else 0)

    def final_bytes(self) -> int:
        """Of the norm after the last block, and what it gives to the loss."""
        return self.norm_bytes() + self.stream_bytes

    def loss_bytes(self, sums_weight: bool = False) -> int:
        """The most that the loss holds at once beside what it is given: it makes its gradients in the forward pass.

        Logits of one chunk in fp32, in 16 bits beside that where products take them so, and the stream's gradient; or,
        behind it, that and what the final norm makes of it. The weight's gradient is held by who adds it up; with
        `sums_weight` that is the loss, of one micro-batch in fp32, and then as the weight is stored.
        """
        weight = word_embedding(self.shape).size // self.tensor if sums_weight else 0
        rows = self.shape.vocabulary // self.tensor
        logits = chunk_tokens(self.tokens, rows, "cpu" if self.on_cpu else "cuda") * rows
        of_logit = _FP32 + (self.element_bytes if is_half(self.shape.precision) and not self.wide else 0)
        stream = self.tokens * self.shape.hidden * self.element_bytes
        gathered = stream if self.sequence_parallel else 0
        forward = stream + logits * of_logit + weight * (_FP32 + self.element_bytes)
        return gathered + max(forward, 2 * stream + weight * self.element_bytes)


#: Tokens of a chunk at least, by the traffic: 5 % of the time on a CPU core, behind the products on a GPU.
LEAST_TOKENS = {"cpu": 512, "cuda": 2048}


#: Logits of a chunk at least: what stays in a CPU's last cache, and what hides the start of a GPU's kernels.
LEAST_LOGITS = {"cpu": 1 << 20, "cuda": 1 << 26}


def chunks_of(tokens: int, rows: int, device: str) -> list[slice]:
    """Which tokens of a micro-batch go together against `rows` of the vocabulary on a rank; as alike as can be.

    Not even the last is smaller than the least size, if there are so many tokens, nor is any twice as large: the logits
    of a chunk are below 2 * max(least tokens * rows, least logits). device: "cpu" or "cuda".
    """
    count = _count(tokens, rows, device)
    return [slice(one * tokens // count, (one + 1) * tokens // count) for one in range(count)]


def chunk_tokens(tokens: int, rows: int, device: str) -> int:
    """Tokens of the largest chunk."""
    return -(-tokens // _count(tokens, rows, device))


def _count(tokens: int, rows: int, device: str) -> int:
    return max(1, tokens // max(1, LEAST_TOKENS[device], LEAST_LOGITS[device] // rows))
