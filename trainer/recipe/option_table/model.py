"""Options of the model: the network, its initial weights, its precision, and its division over ranks."""

from __future__ import annotations

from trainer.recipe.layout import BY_BLOCK, BY_BLOCK_AND_EMBEDDING
from trainer.recipe.model_options import (
    GATES,
    ORIGINAL_LENGTH,
    POSITIONS,
    ROTARY_BASE,
    ROTARY_PERCENT,
    SCALING_FACTOR,
)
from trainer.recipe.option_table.row import Option, choice, count, flag, group, number, option, text

NETWORK: tuple[Option, ...] = group(
    "network",
    count("--num-layers", "Transformer blocks.", below=100_000),
    count("--hidden-size", "Width of the residual stream."),
    count("--ffn-hidden-size", "Width of the MLP; 4 x hidden size by default, two thirds of that with --swiglu."),
    count("--num-attention-heads", "Attention heads of the whole model.", below=1_000_000),
    flag("--group-query-attention", "Several heads share keys and values."),
    count(
        "--num-query-groups",
        "Heads with their own keys and values; 1 by default with --group-query-attention.",
        below=1_000_000,
    ),
    count("--kv-channels", "Width of one head; hidden size / heads when not given, which it need not be."),
    count("--seq-length", "Length of a training sample.", "tokens"),
    count("--max-position-embeddings", "Learned positions; the sequence length when not given.", "tokens"),
    choice(
        "--position-embedding-type",
        POSITIONS,
        "absolute",
        "Positions: learned (absolute), ALiBi, rotary (two names), or rotary ones stretched as in YaRN.",
    ),
    number("--rotary-base", "Base of the rotary positions' angles.", default=ROTARY_BASE, at_least=1),
    number("--rotary-percent", "Share of each head that rotary positions rotate.", default=ROTARY_PERCENT, at_least=0),
    flag("--use-rope-scaling", "Stretch rotary positions as Llama 3.1 does."),
    number("--rope-scaling-factor", "Factor of --use-rope-scaling.", default=SCALING_FACTOR, at_least=1),
    number("--rotary-scaling-factor", "Factor of --position-embedding-type yarn.", default=1.0, at_least=1),
    count(
        "--original-max-position-embeddings",
        "Length of the training before positions were stretched.",
        "tokens",
        default=ORIGINAL_LENGTH,
    ),
    text("--window-size", "Keys before its own that a token attends to, and after it, which are none: 4095,0."),
    count("--make-vocab-size-divisible-by", "Pad the vocabulary to a multiple of this x TP.", "tokens", default=128),
    count("--pad-vocab-size-to", "Pad the vocabulary to exactly this size instead.", "tokens"),
    choice(
        "--normalization",
        ("LayerNorm", "RMSNorm"),
        "LayerNorm",
        "The kind of every norm; RMSNorm has no mean and no bias.",
    ),
    number("--layernorm-epsilon", "Added to the variance in every LayerNorm and RMSNorm.", default=1e-05, at_least=0),
    number("--norm-epsilon", "The same as --layernorm-epsilon.", at_least=0),
    flag("--apply-layernorm-1p", "Weights of norms are stored less 1."),
    number("--embedding-scale", "Factor of the word embedding on its way in.", default=1.0, at_least=0),
    flag("--embed-layernorm", "LayerNorm after the word embedding."),
    flag("--sync-tp-duplicated-parameters", "Average the weights that tensor-parallel ranks share before every step."),
    flag("--apply-residual-connection-post-layernorm", "Take the residual from the LayerNorm's output."),
    flag("--swiglu", "The same as --glu-activation swiglu, with a narrower MLP by default."),
    choice("--glu-activation", GATES, None, "A gated MLP, with SiLU, GeLU, ReLU or no activation of the gate."),
    flag("--qk-layernorm", "A norm of each head's query and key, before rotary positions."),
    flag("--disable-bias-linear", "No biases in attention and MLP."),
    flag("--add-qkv-bias", "With --disable-bias-linear: biases for query, key and value."),
    flag("--untie-embeddings-and-output-weights", "Give the output layer its own weight."),
    flag("--openai-gelu", "The tanh form of GeLU (the default; wins over --no-bias-gelu-fusion)."),
    flag("--no-bias-gelu-fusion", "The exact (erf) form of GeLU, which Megatron's unfused path computes."),
    choice(
        "--kernels",
        ("auto", "torch"),
        "auto",
        "Kernels of norms, activations, loss and update: the built ones, or torch alone.",
    ),
    choice(
        "--attention",
        ("auto", "torch", "C++", "flash-attn", "softmax"),
        "auto",
        "Implementation of attention; auto: the best one for the device.",
    ),
    flag("--no-masked-softmax-fusion", "Leave attention's softmax to torch."),
    flag("--no-bias-dropout-fusion", "Leave bias, dropout and residual to torch."),
    flag("--no-bias-swiglu-fusion", "Leave a gated MLP's activation to torch."),
    flag(
        "--abort-on-unmet-fused-kernel-constraints", "Refuse to start if a kernel is missing that no option turns off."
    ),
    flag("--no-rope-fusion", "Megatron's unfused rotary positions.", notice="no kernel is fused with them"),
    flag(
        "--apply-query-key-layer-scaling",
        "Divide scores by the layer's number, and multiply by it in the softmax.",
        notice="the two cancel, and scores are summed in fp32, where they do not overflow without it",
    ),
    flag(
        "--no-query-key-layer-scaling",
        "Scale scores by the head size alone.",
        notice="scores are never scaled by the layer number",
    ),
    flag("--attention-softmax-in-fp32", "Softmax sums in fp32.", notice="softmax always sums in fp32"),
)

INITIALIZATION: tuple[Option, ...] = group(
    "initialization",
    number("--init-method-std", "Standard deviation of the initial weights.", default=0.02, at_least=0),
    flag(
        "--use-cpu-initialization",
        "Draw initial weights on the CPU.",
        notice="initial weights are always drawn on the CPU",
    ),
)

PRECISION: tuple[Option, ...] = group(
    "precision",
    flag("--bf16", "bfloat16 weights and activations, fp32 sums of gradients and master weights."),
    flag("--fp16", "float16 with loss scaling; needs a GPU."),
    number("--loss-scale", "Fixed fp16 loss scale; dynamic when not given.", at_least=0),
    count("--initial-loss-scale", "First dynamic loss scale, a power of two.", default=2**32),
    number("--min-loss-scale", "Lowest dynamic loss scale.", default=1.0, at_least=0),
    count("--loss-scale-window", "Steps without overflow before the scale doubles.", "iterations", default=1000),
    count("--hysteresis", "Overflows before the scale halves.", default=2),
    flag("--accumulate-allreduce-grads-in-fp32", "Sum fp16 gradients in fp32 (bf16 always does)."),
)

PARALLELISM: tuple[Option, ...] = group(
    "parallelism",
    count("--tensor-model-parallel-size", "Ranks that share every block (TP).", "ranks", default=1, below=1_000_000),
    flag("--sequence-parallel", "Split the sequence over tensor-parallel ranks in norms, dropout and residuals."),
    count("--pipeline-model-parallel-size", "Pipeline stages (PP).", "stages", default=1, below=1_000_000),
    option(
        "--pp-partition-method",
        str,
        BY_BLOCK,
        f"How pipeline stages are balanced: {BY_BLOCK}, {BY_BLOCK_AND_EMBEDDING}, or the blocks of each: 3,4,4,3.",
    ),
    count("--decoder-first-pipeline-num-layers", "Blocks of the first stage; the other stages share the rest evenly."),
    count("--decoder-last-pipeline-num-layers", "Blocks of the last stage; the other stages share the rest evenly."),
    choice("--distributed-backend", ("nccl", "gloo"), None, "gloo or nccl; by the device when not given."),
    number("--distributed-timeout-minutes", "Longest wait for another rank.", "minutes", default=30.0, at_least=0.01),
    option("--zero-stage", int, 1, "ZeRO stage; 0 trains as 1: optimizer states are sharded over DP.", choices=(0, 1)),
    count("--zero-reduce-bucket-size", "Gradients reduced at once.", "elements", default=500_000_000),
    count("--zero-allgather-bucket-size", "Weights gathered at once.", "elements", default=500_000_000),
    choice(
        "--DDP-impl",
        ("local", "torch"),
        "local",
        "Megatron's data parallelism.",
        notice="DeepSpeed's engine reduces gradients",
    ),
)
