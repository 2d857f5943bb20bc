"""What the model is."""

from __future__ import annotations

from trainer.recipe.model_options import GATES, POSITIONS, ROTARY_BASE, ROTARY_PERCENT
from trainer.recipe.option_table.row import Option, flag, group, option

_NO_FUSED_KERNELS = "no fused kernel is chosen by hand here"

OPTIONS: tuple[Option, ...] = group(
    "network",
    option("--num-layers", int, None, "Transformer blocks.", at_least=1),
    option("--hidden-size", int, None, "Width of the residual stream.", at_least=1),
    option(
        "--ffn-hidden-size",
        int,
        None,
        "Width inside the MLP; 4 x hidden size when not given, with --swiglu two thirds of that, a multiple of 64.",
        at_least=1,
    ),
    option("--num-attention-heads", int, None, "Attention heads of the whole model.", at_least=1),
    flag("--group-query-attention", "Several heads share keys and values."),
    option(
        "--num-query-groups",
        int,
        None,
        "Heads with keys and values of their own; 1 when --group-query-attention stands alone.",
        at_least=1,
    ),
    option("--kv-channels", int, None, "Width of one head; hidden size / heads when not given.", at_least=1),
    option("--seq-length", int, None, "Length of a training sample.", unit="tokens", at_least=1),
    option(
        "--max-position-embeddings",
        int,
        None,
        "Learned positions; the sequence length when not given.",
        unit="tokens",
        at_least=1,
    ),
    option(
        "--position-embedding-type",
        str,
        "absolute",
        "Learned positions (absolute), ALiBi, or rotary ones, which have two names.",
        choices=POSITIONS,
    ),
    option("--rotary-base", float, ROTARY_BASE, "Base of the rotary positions' angles.", at_least=1),
    option("--rotary-percent", float, ROTARY_PERCENT, "Share of each head that rotary positions turn.", at_least=0),
    option(
        "--make-vocab-size-divisible-by",
        int,
        128,
        "The vocabulary is padded to a multiple of this x TP.",
        unit="tokens",
        at_least=1,
    ),
    option(
        "--pad-vocab-size-to",
        int,
        None,
        "Pad the vocabulary to exactly this size instead.",
        unit="tokens",
        at_least=1,
    ),
    option(
        "--normalization",
        str,
        "LayerNorm",
        "LayerNorm, or RMSNorm, which has no mean and no bias, in every place of one.",
        choices=("LayerNorm", "RMSNorm"),
    ),
    option("--layernorm-epsilon", float, 1e-5, "Added to the variance in every LayerNorm and RMSNorm.", at_least=0),
    option("--norm-epsilon", float, None, "The same as --layernorm-epsilon.", at_least=0),
    flag("--embed-layernorm", "LayerNorm after the word embedding."),
    flag(
        "--sync-tp-duplicated-parameters",
        "Average what tensor-parallel ranks hold in common before every step.",
    ),
    flag("--apply-residual-connection-post-layernorm", "Take the residual from the LayerNorm's output."),
    flag("--swiglu", "The same as --glu-activation swiglu, with an MLP that is narrower unless its width is given."),
    option(
        "--glu-activation",
        str,
        None,
        "A gated MLP: what comes of the gate through SiLU, GeLU, ReLU or as it is multiplies the rest.",
        choices=GATES,
    ),
    flag("--qk-layernorm", "A norm over each head of query and key, before rotary positions."),
    flag("--disable-bias-linear", "No biases in attention and MLP."),
    flag("--add-qkv-bias", "With --disable-bias-linear biases for query, key and value all the same."),
    flag("--untie-embeddings-and-output-weights", "An output layer with a weight of its own."),
    flag("--openai-gelu", "The tanh form of GeLU (the default; wins over --no-bias-gelu-fusion)."),
    flag("--no-bias-gelu-fusion", "The exact (erf) form of GeLU, which Megatron's unfused path computes."),
    flag("--no-masked-softmax-fusion", "Megatron's unfused softmax.", notice=_NO_FUSED_KERNELS),
    flag("--no-bias-dropout-fusion", "Megatron's unfused bias and dropout.", notice=_NO_FUSED_KERNELS),
    flag(
        "--abort-on-unmet-fused-kernel-constraints",
        "Stop when a fused kernel cannot be used.",
        notice=_NO_FUSED_KERNELS,
    ),
    flag("--no-bias-swiglu-fusion", "Megatron's unfused gate.", notice=_NO_FUSED_KERNELS),
    flag("--no-rope-fusion", "Megatron's unfused rotary positions.", notice=_NO_FUSED_KERNELS),
    flag(
        "--apply-query-key-layer-scaling",
        "Scores divided by the layer's number, and multiplied by it in the softmax.",
        notice="the two cancel, and scores are summed in fp32, where they do not overflow without it",
    ),
    flag(
        "--no-query-key-layer-scaling",
        "Scores scaled by the head size alone.",
        notice="scores are never scaled by the layer number",
    ),
    flag("--attention-softmax-in-fp32", "Softmax sums in fp32.", notice="softmax always sums in fp32"),
)
