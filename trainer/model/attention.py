"""Causal self-attention, split over heads.

Dropout of attention's weights has a mask for each sample and head of the model. On a GPU the fused kernel draws it
itself: there it follows from the sample and from which heads this rank has, so from the tensor-parallel size too.

Shapes: b batch, s sequence, h hidden, n heads of this rank, g groups of them that share keys and values, d head size.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as causal_attention
from torch.utils.checkpoint import checkpoint

from trainer.kernels.attention import AttentionKernels, attention, attention_of_product
from trainer.kernels.residual import drop, keeping_masks
from trainer.model.dropout import DropoutClock, seed_device
from trainer.model.rotary import rotated
from trainer.model.weights import LayerWeights, Norm
from trainer.parallel.process_groups import Parallel
from trainer.parallel.products import is_slow_half
from trainer.parallel.sequence import gathered
from trainer.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear, copy_to_tensor_ranks
from trainer.recipe.activations import alibi_feature_count
from trainer.recipe.model_shape import ModelShape

# Positions are split into multiples of this and a rest, both exact in bfloat16's 8 bits up to 32,768.
_COARSE = 128


def alibi_slopes(heads: int) -> list[float]:
    """Slopes of all heads of the model: a geometric series for powers of two, filled up from the next one otherwise."""
    closest = 2 ** math.floor(math.log2(heads))
    base = 2.0 ** (-(2.0 ** -(math.log2(closest) - 3)))
    slopes = [base**power for power in range(1, closest + 1)]
    if closest < heads:
        slopes += alibi_slopes(2 * closest)[0::2][: heads - closest]
    return slopes


def query_features(slopes_h: Tensor, head_size: int, dtype: torch.dtype) -> Tensor:
    """[heads, features]: slope x sqrt(head size), the root against attention's scale, as a sum of two numbers."""
    wanted_h = slopes_h.double() * math.sqrt(head_size)
    high_h = wanted_h.to(dtype)
    low_h = (wanted_h - high_h.double()).to(dtype)
    features = torch.zeros(len(slopes_h), alibi_feature_count(head_size), dtype=dtype)
    features[:, 0] = features[:, 1] = high_h
    features[:, 2] = features[:, 3] = low_h
    return features


def key_features(length: int, head_size: int, dtype: torch.dtype) -> Tensor:
    """[length, features]: the key's position as a sum of two numbers, once for each part of the slope."""
    position_s = torch.arange(length)
    fine_s = position_s % _COARSE
    features = torch.zeros(length, alibi_feature_count(head_size), dtype=dtype)
    features[:, 0] = features[:, 2] = (position_s - fine_s).to(dtype)
    features[:, 1] = features[:, 3] = fine_s.to(dtype)
    return features


class SelfAttention(nn.Module):
    """x_bsh -> query, key, value -> causal softmax -> dense.

    Rows of `query_key_value` are [q, k, v] head by head, or with several heads' q where they share k and v. With
    `recompute` nothing between the two products is kept: the backward pass computes it again from the first one's.
    """

    def __init__(
        self,
        shape: ModelShape,
        layer: int,
        parallel: Parallel,
        clock: DropoutClock,
        weights: LayerWeights,
        recompute: bool = False,
        leaves_bias: bool = False,
    ) -> None:
        super().__init__()
        self.shape, self.layer, self.clock, self.recompute = shape, layer, clock, recompute
        self.parallel = parallel
        self.local_heads = shape.heads // parallel.tensor_size
        self.first_head = parallel.tensor_rank * self.local_heads
        self.local_groups = max(1, shape.groups // parallel.tensor_size)
        self.kernels = parallel.operations.attention
        self.query_key_value = ColumnParallelLinear(*weights.pair("self_attention.query_key_value"), parallel)
        if shape.query_key_norm:
            self.q_layernorm = HeadNorm(shape, weights, "self_attention.q_layernorm", parallel)
            self.k_layernorm = HeadNorm(shape, weights, "self_attention.k_layernorm", parallel)
        self.dense = RowParallelLinear(*weights.pair("self_attention.dense"), parallel, leaves_bias)
        self.core_attention = parallel.operations.core_attention
        if shape.alibi:
            self._slopes = tuple(alibi_slopes(shape.heads)[self.first_head : self.first_head + self.local_heads])

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> out_bsh in the dtype of x: both whole on every tensor-parallel rank, or slices of the sequence."""
        qkv = self.query_key_value(x_bsh)
        if self.shape.groups < self.parallel.tensor_size:
            qkv = self._of_own_heads(qkv)
        mixed_bsh = again(self._core, self.clock, qkv) if self.recompute else self._core(qkv)
        out_bsh: Tensor = self.dense(mixed_bsh)
        return out_bsh

    def _of_own_heads(self, qkv: Tensor) -> Tensor:
        """Return the queries of this rank's heads with their group's key and value, where several ranks share it.

        The weight is split evenly all the same, as in a checkpoint of any layout. Both directions are collective.
        """
        shape, of_group = self.shape, self.shape.heads // self.shape.groups
        rows_bos = gathered(qkv.transpose(1, 2), self.parallel)
        by_group = rows_bos.transpose(1, 2).unflatten(-1, (shape.groups, of_group + 2, shape.head_size))
        group, first = divmod(self.first_head, of_group)
        own, shared = by_group[:, :, group, first : first + self.local_heads], by_group[:, :, group, of_group:]
        return torch.cat((own, shared), dim=2).flatten(2)

    def _core(self, qkv: Tensor) -> Tensor:
        """Compute attention between the products with weights: this rank's part of [b, s, h], in the dtype of `qkv`."""
        if self.kernels is not None and not (self.shape.attention_dropout and self.training):
            return self._core_by_kernels(qkv, self.kernels)
        b, s, _ = qkv.shape
        d = self.shape.head_size
        q_bnsd, k_bnsd, v_bnsd = self._query_key_value(qkv)
        mixed_bnsd = self._mixed(q_bnsd, k_bnsd, v_bnsd, scale=1 / math.sqrt(d))
        return mixed_bnsd[..., :d].transpose(1, 2).reshape(b, s, self.local_heads * d).to(qkv.dtype)

    def _core_by_kernels(self, qkv: Tensor, kernels: AttentionKernels) -> Tensor:
        """Compute the same with kernels, in place; queries and keys are copied only for norms or rotation."""
        b, s, _ = qkv.shape
        n, g, d = self.local_heads, self.local_groups, self.shape.head_size
        slopes_n = _slopes(self._slopes, qkv.device) if self.shape.alibi else None
        scale = 1 / math.sqrt(d)
        qkv_bsgxd = qkv.view(b, s, g, n // g + 2, d)
        if not (self.shape.query_key_norm or self.shape.rotary_size):
            return attention_of_product(qkv_bsgxd, slopes_n, scale, kernels).view(b, s, n * d)
        q_bsgmd, k_bsgd, v_bsgd = _split(qkv_bsgxd)
        q_bsnd = self._placed(q_bsgmd.reshape(b, s, n, d).transpose(1, 2), "q_layernorm").transpose(1, 2)
        k_bsgd = self._placed(k_bsgd.transpose(1, 2), "k_layernorm").transpose(1, 2)
        return attention(q_bsnd.unflatten(2, (g, n // g)), k_bsgd, v_bsgd, slopes_n, scale, kernels).view(b, s, n * d)

    def _query_key_value(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[b, n, s, d] of each, as their products want them; keys and values repeated for the heads that share them."""
        b, s, _ = qkv.shape
        n, g, d = self.local_heads, self.local_groups, self.shape.head_size
        of_group = n // g
        qkv = qkv.view(b, s, g, of_group + 2, d)
        if is_slow_half(qkv):
            qkv = qkv.float()
        q_bsgnd, k_bsgd, v_bsgd = qkv[..., :of_group, :], qkv[..., of_group, :], qkv[..., of_group + 1, :]
        q_bnsd = self._placed(q_bsgnd.reshape(b, s, n, d).transpose(1, 2), "q_layernorm")
        k_bgsd = self._placed(k_bsgd.transpose(1, 2), "k_layernorm")
        return q_bnsd, _repeated(k_bgsd, of_group), _repeated(v_bsgd.transpose(1, 2), of_group)

    def _placed(self, x_bnsd: Tensor, norm: str) -> Tensor:
        """Apply the norm to queries or keys, if there is one, then the rotation, if positions are rotary."""
        if self.shape.query_key_norm:
            x_bnsd = getattr(self, norm)(x_bnsd)
        if self.shape.rotary_size:
            shape = self.shape
            positions_bs = positions_in_documents(self.clock.starts_bs) if shape.resets_positions else None
            x_bnsd = rotated(x_bnsd, shape.rotary_base, shape.rotary_size, shape.rotary_scaling, positions_bs)
        return x_bnsd

    def _mixed(self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor, scale: float) -> Tensor:
        """Return the weighted values: [b, n, s, d], and with ALiBi in features, those after them."""
        dropout = self.shape.attention_dropout if self.training else 0.0
        if self.core_attention is not None and not dropout:
            slopes_n = _slopes(self._slopes, q_bnsd.device) if self.shape.alibi else None
            return self.core_attention(q_bnsd, k_bnsd, v_bnsd, slopes_n, scale)
        if self.shape.alibi:
            q_bnsd, k_bnsd, v_bnsd = self._with_alibi(q_bnsd, k_bnsd, v_bnsd)
        visible_bss = self._visible(q_bnsd)
        if not dropout:
            return _attended(q_bnsd, k_bnsd, v_bnsd, scale, visible_bss)
        if draws_its_own_masks(q_bnsd.device):
            return self._mixed_by_sample(q_bnsd, k_bnsd, v_bnsd, scale, dropout, visible_bss)
        b, n, s, _ = q_bnsd.shape
        heads = range(self.first_head, self.first_head + n)
        seeds = [self.clock.seed_of(row, self.layer, "attention", head) for row in range(b) for head in heads]
        mask_bnss = keeping_masks(seeds, (s, s), dropout, q_bnsd.device).view(b, n, s, s)
        return attention_with_dropout(q_bnsd, k_bnsd, v_bnsd, scale, mask_bnss, dropout, visible_bss)

    def _visible(self, q_bnsd: Tensor) -> Tensor | None:
        """Return 0 for the keys that each query attends to and -inf elsewhere, in its dtype; None: all up to its own.

        It has a row of samples only where documents are kept apart: [b or 1, 1, s, s].
        """
        starts_bs = self.clock.starts_bs if self.shape.splits_documents else None
        if starts_bs is None and self.shape.window is None:
            return None
        visible_ss = _in_window(q_bnsd.shape[-2], self.shape.window, q_bnsd.dtype, q_bnsd.device)
        if starts_bs is None:
            return visible_ss[None, None]
        masks = self.clock.masks
        if q_bnsd.dtype not in masks:
            before_bss = torch.arange(q_bnsd.shape[-2], device=q_bnsd.device) < starts_bs[..., None]
            masks[q_bnsd.dtype] = visible_ss.masked_fill(before_bss, -torch.inf)[:, None]
        return masks[q_bnsd.dtype]

    def _mixed_by_sample(
        self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor, scale: float, dropout: float, visible: Tensor | None
    ) -> Tensor:
        """With masks that the kernel draws from the device's generator, seeded for each sample."""
        mixed = []
        for row in range(len(q_bnsd)):
            seed_device(q_bnsd.device, self.clock.seed_of(row, self.layer, "attention", self.first_head))
            one = slice(row, row + 1)
            of_row = visible if visible is None or len(visible) == 1 else visible[one]
            mixed.append(_attended(q_bnsd[one], k_bnsd[one], v_bnsd[one], scale, of_row, dropout))
        return torch.cat(mixed)

    def _with_alibi(self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query and key with the features that add slope x position to their product; value padded to the same size."""
        b, n, s, d = q_bnsd.shape
        extra = alibi_feature_count(d)
        query_nf, key_sf = _alibi_features(self._slopes, s, d, q_bnsd.dtype, q_bnsd.device)
        q = torch.cat((q_bnsd, query_nf.view(1, n, 1, extra).expand(b, n, s, extra)), dim=-1)
        k = torch.cat((k_bnsd, key_sf.view(1, 1, s, extra).expand(b, n, s, extra)), dim=-1)
        return q, k, nn.functional.pad(v_bnsd, (0, extra))


class HeadNorm(Norm):
    """A norm over each head. Tensor-parallel ranks have other heads, and the gradient is the sum over all of them."""

    def __init__(self, shape: ModelShape, weights: LayerWeights, name: str, parallel: Parallel) -> None:
        super().__init__(shape, weights, name)
        self.parallel = parallel

    def forward(self, x_bnsd: Tensor) -> Tensor:
        """x_bnsd, this rank's heads -> the same shape and dtype. Backward is collective."""
        weight = copy_to_tensor_ranks(self.weight, self.parallel).to(x_bnsd.dtype)
        bias = None if self.bias is None else copy_to_tensor_ranks(self.bias, self.parallel).to(x_bnsd.dtype)
        weight = weight + self.added if self.added else weight
        return self.normalized(x_bnsd, weight, bias)


def _split(qkv_bsgxd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split into the queries of each group, its key and its value; the backward pass writes one tensor."""
    q_bsgmd, k_bsgd, v_bsgd = qkv_bsgxd.split((qkv_bsgxd.shape[3] - 2, 1, 1), dim=3)
    return q_bsgmd, k_bsgd.squeeze(3), v_bsgd.squeeze(3)


def _repeated(x_bgsd: Tensor, times: int) -> Tensor:
    """Each group's keys or values for each of its heads: [b, g * times, s, d]."""
    return x_bgsd if times == 1 else x_bgsd.repeat_interleave(times, dim=1)


def _attended(
    q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor, scale: float, visible: Tensor | None, dropout: float = 0.0
) -> Tensor:
    """Return attention by torch's kernels. visible: added to the scores; None: all keys up to the query."""
    return causal_attention(
        q_bnsd, k_bnsd, v_bnsd, attn_mask=visible, dropout_p=dropout, is_causal=visible is None, scale=scale
    )


def positions_in_documents(starts_bs: Tensor | None) -> Tensor | None:
    """Return each token's position in its document, int64."""
    return None if starts_bs is None else torch.arange(starts_bs.shape[1], device=starts_bs.device) - starts_bs


@functools.lru_cache(maxsize=4)
def _in_window(length: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return [query, key], 0 for the last `window` keys up to the query, -inf elsewhere; all layers share it."""
    hidden_ss = torch.full((length, length), -torch.inf, dtype=dtype, device=device)
    visible_ss = torch.triu(hidden_ss, 1) if window is not None else hidden_ss.triu_(1)
    return visible_ss if window is None else visible_ss.add_(hidden_ss.tril_(-window))


def attention_with_dropout(
    q_bnsd: Tensor,
    k_bnsd: Tensor,
    v_bnsd: Tensor,
    scale: float,
    mask_bnss: Tensor,
    probability: float,
    visible: Tensor | None = None,
) -> Tensor:
    """drop(softmax(scale * q @ k.T, causal)) @ v, with the softmax in fp32. mask_bnss: true where a weight is kept.

    visible: added to the scores instead of the causal mask.
    """
    scores_bnss = (q_bnsd * scale) @ k_bnsd.transpose(-1, -2)
    if visible is None:
        later_ss = torch.ones(scores_bnss.shape[-2:], dtype=torch.bool, device=q_bnsd.device).triu(1)
        scores_bnss = scores_bnss.float().masked_fill(later_ss, -torch.inf)
    else:
        scores_bnss = scores_bnss.float() + visible
    weights_bnss = scores_bnss.softmax(dim=-1)
    return drop(weights_bnss, mask_bnss, probability).to(v_bnsd.dtype) @ v_bnsd


def draws_its_own_masks(device: torch.device) -> bool:
    """Return whether attention is a fused kernel here that draws its masks itself; a CPU has none."""
    return device.type == "cuda"


def masks_notices(attention_dropout: float, device: torch.device) -> tuple[str, ...]:
    """Return notices about attention's masks at the start of a training; none if no layout changes them."""
    if not attention_dropout or not draws_its_own_masks(device):
        return ()
    return (
        f"--attention-dropout {attention_dropout:g} on a GPU: its masks follow seed, sample and the heads of a rank: "
        "another tensor-parallel size trains slightly otherwise; with --attention-dropout 0 it does not",
    )


@functools.lru_cache(maxsize=8)
def _slopes(slopes: tuple[float, ...], device: torch.device) -> Tensor:
    """Return the slopes on the device, in fp32; all layers of a model share them."""
    return torch.tensor(slopes, dtype=torch.float32, device=device)


@functools.lru_cache(maxsize=8)
def _alibi_features(
    slopes: tuple[float, ...], length: int, head_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Query and key features on the device; all layers of a model share them."""
    query_nf = query_features(torch.tensor(slopes, dtype=torch.float64), head_size, dtype)
    return query_nf.to(device), key_features(length, head_size, dtype).to(device)


def again(function: Callable[..., Any], clock: DropoutClock, *inputs: Any) -> Any:
    """function(*inputs), of which autograd keeps `inputs` alone. The second time draws the same dropout masks."""
    sample, starts_bs = clock.sample, clock.starts_bs

    def at_that_time(*same_inputs: Any) -> Any:
        with clock.at(sample, starts_bs):
            return function(*same_inputs)

    return checkpoint(at_that_time, *inputs, use_reentrant=False, preserve_rng_state=False)
