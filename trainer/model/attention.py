"""Causal self-attention, split over heads.

Dropout of attention's weights has a mask for each sample and head of the model. On a GPU the fused kernel draws it
itself: there it follows from the sample and from which heads this rank has, so from the tensor-parallel size too.

Shapes: b batch, s sequence, h hidden, n heads of this rank, d head size.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as causal_attention

from trainer.model.alibi import alibi_slopes, feature_count, key_features, query_features
from trainer.model.dropout import DropoutClock, drop, keeping_masks, seed_device
from trainer.model.weights import LayerWeights
from trainer.parallel.process_groups import Parallel
from trainer.parallel.products import is_slow_half
from trainer.parallel.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from trainer.recipe.model_shape import ModelShape


class SelfAttention(nn.Module):
    """x_bsh -> query, key, value -> causal softmax -> dense. Rows of `query_key_value` are [q, k, v] head by head."""

    def __init__(
        self, shape: ModelShape, layer: int, parallel: Parallel, clock: DropoutClock, weights: LayerWeights
    ) -> None:
        super().__init__()
        self.shape, self.layer, self.clock = shape, layer, clock
        self.local_heads = shape.heads // parallel.tensor_size
        self.first_head = parallel.tensor_rank * self.local_heads
        self.query_key_value = ColumnParallelLinear(*weights.pair("self_attention.query_key_value"), parallel)
        self.dense = RowParallelLinear(*weights.pair("self_attention.dense"), parallel)
        if shape.alibi:
            self._slopes = tuple(alibi_slopes(shape.heads)[self.first_head : self.first_head + self.local_heads])

    def forward(self, x_bsh: Tensor) -> Tensor:
        """x_bsh -> out_bsh, both whole on every tensor-parallel rank, in the dtype of x."""
        b, s, _ = x_bsh.shape
        d = self.shape.head_size
        qkv_bsn3d = self.query_key_value(x_bsh).view(b, s, self.local_heads, 3, d)
        if is_slow_half(qkv_bsn3d):
            qkv_bsn3d = qkv_bsn3d.float()
        q_bnsd, k_bnsd, v_bnsd = qkv_bsn3d.permute(3, 0, 2, 1, 4)
        if self.shape.alibi:
            q_bnsd, k_bnsd, v_bnsd = self._with_alibi(q_bnsd, k_bnsd, v_bnsd)
        mixed_bnsd = self._mixed(q_bnsd, k_bnsd, v_bnsd, scale=1 / math.sqrt(d))
        mixed_bsh = mixed_bnsd[..., :d].transpose(1, 2).reshape(b, s, self.local_heads * d)
        out_bsh: Tensor = self.dense(mixed_bsh.to(x_bsh.dtype))
        return out_bsh

    def _mixed(self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor, scale: float) -> Tensor:
        """The values by attention's weights: [b, n, s, d]."""
        dropout = self.shape.attention_dropout if self.training else 0.0
        if not dropout:
            return causal_attention(q_bnsd, k_bnsd, v_bnsd, is_causal=True, scale=scale)
        if draws_its_own_masks(q_bnsd.device):
            return self._mixed_by_sample(q_bnsd, k_bnsd, v_bnsd, scale, dropout)
        b, n, s, _ = q_bnsd.shape
        heads = range(self.first_head, self.first_head + n)
        seeds = [self.clock.seed_of(row, self.layer, "attention", head) for row in range(b) for head in heads]
        mask_bnss = keeping_masks(seeds, (s, s), dropout, q_bnsd.device).view(b, n, s, s)
        return attention_with_dropout(q_bnsd, k_bnsd, v_bnsd, scale, mask_bnss, dropout)

    def _mixed_by_sample(self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor, scale: float, dropout: float) -> Tensor:
        """With masks that the kernel draws from the device's generator, seeded for each sample."""
        mixed = []
        for row in range(len(q_bnsd)):
            seed_device(q_bnsd.device, self.clock.seed_of(row, self.layer, "attention", self.first_head))
            one = slice(row, row + 1)
            mixed.append(
                causal_attention(q_bnsd[one], k_bnsd[one], v_bnsd[one], dropout_p=dropout, is_causal=True, scale=scale)
            )
        return torch.cat(mixed)

    def _with_alibi(self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query and key with the features that add slope x position to their product; value padded to the same size."""
        b, n, s, d = q_bnsd.shape
        extra = feature_count(d)
        query_nf, key_sf = _alibi_features(self._slopes, s, d, q_bnsd.dtype, q_bnsd.device)
        q = torch.cat((q_bnsd, query_nf.view(1, n, 1, extra).expand(b, n, s, extra)), dim=-1)
        k = torch.cat((k_bnsd, key_sf.view(1, 1, s, extra).expand(b, n, s, extra)), dim=-1)
        return q, k, nn.functional.pad(v_bnsd, (0, extra))


def attention_with_dropout(
    q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor, scale: float, mask_bnss: Tensor, probability: float
) -> Tensor:
    """drop(softmax(scale * q @ k.T, causal)) @ v, with the softmax in fp32. mask_bnss: true where a weight is kept."""
    scores_bnss = (q_bnsd * scale) @ k_bnsd.transpose(-1, -2)
    later_ss = torch.ones(scores_bnss.shape[-2:], dtype=torch.bool, device=q_bnsd.device).triu(1)
    weights_bnss = scores_bnss.float().masked_fill(later_ss, -torch.inf).softmax(dim=-1)
    return drop(weights_bnss, mask_bnss, probability).to(v_bnsd.dtype) @ v_bnsd


def draws_its_own_masks(device: torch.device) -> bool:
    """Whether attention is a fused kernel here that drops by itself; a CPU has none that drops at all."""
    return device.type == "cuda"


def masks_notices(attention_dropout: float, device: torch.device) -> tuple[str, ...]:
    """What to say of attention's masks at the start of a training; nothing where no layout changes them."""
    if not attention_dropout or not draws_its_own_masks(device):
        return ()
    return (
        f"--attention-dropout {attention_dropout:g} on a GPU: its masks follow seed, sample and the heads of a rank: "
        "another tensor-parallel size trains slightly otherwise; with --attention-dropout 0 it does not",
    )


@functools.lru_cache(maxsize=8)
def _alibi_features(
    slopes: tuple[float, ...], length: int, head_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Query and key features on the device; all layers of a model share them."""
    query_nf = query_features(torch.tensor(slopes, dtype=torch.float64), head_size, dtype)
    return query_nf.to(device), key_features(length, head_size, dtype).to(device)
