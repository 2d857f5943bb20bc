"""Causal self-attention, split over heads.

Shapes: b batch, s sequence, h hidden, n heads of this rank, d head size.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

from trainer.model.alibi import alibi_slopes, feature_count, key_features, query_features
from trainer.model.dropout import DropoutClock
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
        self.query_key_value = ColumnParallelLinear(*weights.pair("self_attention.query_key_value"), parallel)
        self.dense = RowParallelLinear(*weights.pair("self_attention.dense"), parallel)
        if shape.alibi:
            first = parallel.tensor_rank * self.local_heads
            self._slopes = tuple(alibi_slopes(shape.heads)[first : first + self.local_heads])

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
        dropout = self.shape.attention_dropout if self.training else 0.0
        if dropout:
            self.clock.seed_generator(x_bsh.device, self.layer, "attention", split=True)
        mixed_bnsd = nn.functional.scaled_dot_product_attention(
            q_bnsd, k_bnsd, v_bnsd, dropout_p=dropout, is_causal=True, scale=1 / math.sqrt(d)
        )
        mixed_bsh = mixed_bnsd[..., :d].transpose(1, 2).reshape(b, s, self.local_heads * d)
        out_bsh: Tensor = self.dense(mixed_bsh.to(x_bsh.dtype))
        return out_bsh

    def _with_alibi(self, q_bnsd: Tensor, k_bnsd: Tensor, v_bnsd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query and key with the features that add slope x position to their product; value padded to the same size."""
        b, n, s, d = q_bnsd.shape
        extra = feature_count(d)
        query_nf, key_sf = _alibi_features(self._slopes, s, d, q_bnsd.dtype, q_bnsd.device)
        q = torch.cat((q_bnsd, query_nf.view(1, n, 1, extra).expand(b, n, s, extra)), dim=-1)
        k = torch.cat((k_bnsd, key_sf.view(1, 1, s, extra).expand(b, n, s, extra)), dim=-1)
        return q, k, nn.functional.pad(v_bnsd, (0, extra))


@functools.lru_cache(maxsize=8)
def _alibi_features(
    slopes: tuple[float, ...], length: int, head_size: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Query and key features on the device; all layers of a model share them."""
    query_nf = query_features(torch.tensor(slopes, dtype=torch.float64), head_size, dtype)
    return query_nf.to(device), key_features(length, head_size, dtype).to(device)
