"""A model with all that came after BLOOM, as small as the others: by the same names as on a command line."""

from __future__ import annotations

from typing import Any

#: Four heads in two groups, so that two tensor-parallel ranks have one each.
MODERN: dict[str, Any] = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "disable_bias_linear": True,
    "glu_activation": "swiglu",
    "num_attention_heads": 4,
    "group_query_attention": True,
    "num_query_groups": 2,
    "untie_embeddings_and_output_weights": True,
}
#: And norms of queries and keys, whose gradients tensor-parallel ranks add up.
WITH_NORMS: dict[str, Any] = {**MODERN, "qk_layernorm": True}
