"""Options of the model: the network, its initial weights, its precision, and its division over ranks."""

from __future__ import annotations

from trainer.recipe.layout import BY_BLOCK, BY_BLOCK_AND_EMBEDDING
from trainer.recipe.model_options import GATES, POSITIONS, ROTARY_BASE, ROTARY_PERCENT
from trainer.recipe.option_table.row import Option, flag, group, option

NETWORK: tuple[Option, ...] = group(
    "network",
    option("--num-layers", int, None, "Transformer blocks.", at_least=1, below=100_000),
    option("--hidden-size", int, None, "Width of the residual stream.", at_least=1, below=2**31),
    option(
        "--ffn-hidden-size",
        int,
        None,
        "Width inside the MLP; 4 x hidden size when not given, with --swiglu two thirds of that, a multiple of 64.",
        at_least=1,
        below=2**31,
    ),
    option("--num-attention-heads", int, None, "Attention heads of the whole model.", at_least=1, below=1_000_000),
    flag("--group-query-attention", "Several heads share keys and values."),
    option(
        "--num-query-groups",
        int,
        None,
        "Heads with keys and values of their own; 1 when --group-query-attention stands alone.",
        at_least=1,
        below=1_000_000,
    ),
    option(
        "--kv-channels", int, None, "Width of one head; hidden size / heads when not given.", at_least=1, below=2**31
    ),
    option("--seq-length", int, None, "Length of a training sample.", unit="tokens", at_least=1, below=2**31),
    option(
        "--max-position-embeddings",
        int,
        None,
        "Learned positions; the sequence length when not given.",
        unit="tokens",
        at_least=1,
        below=2**31,
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
        below=2**31,
    ),
    option(
        "--pad-vocab-size-to",
        int,
        None,
        "Pad the vocabulary to exactly this size instead.",
        unit="tokens",
        at_least=1,
        below=2**31,
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
        "A gated MLP: the gate, after SiLU, GeLU, ReLU or unchanged, multiplies the other part.",
        choices=GATES,
    ),
    flag("--qk-layernorm", "A norm over each head of query and key, before rotary positions."),
    flag("--disable-bias-linear", "No biases in attention and MLP."),
    flag("--add-qkv-bias", "With --disable-bias-linear biases for query, key and value all the same."),
    flag("--untie-embeddings-and-output-weights", "An output layer with a weight of its own."),
    flag("--openai-gelu", "The tanh form of GeLU (the default; wins over --no-bias-gelu-fusion)."),
    flag("--no-bias-gelu-fusion", "The exact (erf) form of GeLU, which Megatron's unfused path computes."),
    option(
        "--kernels",
        str,
        "auto",
        "What computes norms, activations, the loss and the update: what `opsctl kernels build` has built, or torch.",
        choices=("auto", "torch"),
    ),
    option(
        "--attention",
        str,
        "auto",
        "The implementation of attention: the best one for the device, or the named one.",
        choices=("auto", "torch", "C++", "flash-attn", "softmax"),
    ),
    flag("--no-masked-softmax-fusion", "Leave attention's softmax to torch where products stand around it."),
    flag("--no-bias-dropout-fusion", "Leave bias, dropout and residual to torch."),
    flag("--no-bias-swiglu-fusion", "Leave a gated MLP's activation to torch."),
    flag(
        "--abort-on-unmet-fused-kernel-constraints",
        "Refuse to start where torch would compute what no option leaves to it.",
    ),
    flag("--no-rope-fusion", "Megatron's unfused rotary positions.", notice="no kernel is fused with them"),
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


INITIALIZATION: tuple[Option, ...] = group(
    "initialization",
    option("--init-method-std", float, 0.02, "Standard deviation of the initial weights.", at_least=0),
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
    option("--loss-scale", float, None, "Fixed fp16 loss scale; dynamic when not given.", at_least=0),
    option("--initial-loss-scale", int, 2**32, "First dynamic loss scale, a power of two.", at_least=1),
    option("--min-loss-scale", float, 1.0, "Lowest dynamic loss scale.", at_least=0),
    option(
        "--loss-scale-window",
        int,
        1000,
        "Steps without overflow before the scale doubles.",
        unit="iterations",
        at_least=1,
    ),
    option("--hysteresis", int, 2, "Overflows before the scale halves.", at_least=1),
    flag(
        "--accumulate-allreduce-grads-in-fp32",
        "Add gradients up in fp32, over micro-batches and replicas (bf16 always does).",
    ),
)


PARALLELISM: tuple[Option, ...] = group(
    "parallelism",
    option(
        "--tensor-model-parallel-size",
        int,
        1,
        "Ranks that share every block (TP).",
        unit="ranks",
        at_least=1,
        below=1_000_000,
    ),
    flag(
        "--sequence-parallel",
        "Ranks that share blocks split the sequence between the layers that they split: norms, dropout, residuals.",
    ),
    option(
        "--pipeline-model-parallel-size", int, 1, "Pipeline stages (PP).", unit="stages", at_least=1, below=1_000_000
    ),
    option(
        "--pp-partition-method",
        str,
        BY_BLOCK,
        "What pipeline stages have an equal number of.",
        choices=(BY_BLOCK, BY_BLOCK_AND_EMBEDDING),
    ),
    option("--distributed-backend", str, None, "gloo or nccl; by the device when not given.", choices=("nccl", "gloo")),
    option(
        "--distributed-timeout-minutes",
        float,
        30.0,
        "Longest wait for another rank.",
        unit="minutes",
        at_least=0.01,
    ),
    option(
        "--zero-stage",
        int,
        1,
        "Optimizer states are sharded over DP; stage 0 is taken too and trains the same.",
        choices=(0, 1),
    ),
    option("--zero-reduce-bucket-size", int, 500_000_000, "Gradients reduced at once.", unit="elements", at_least=1),
    option("--zero-allgather-bucket-size", int, 500_000_000, "Weights gathered at once.", unit="elements", at_least=1),
    option(
        "--DDP-impl",
        str,
        "local",
        "Megatron's data parallelism.",
        choices=("local", "torch"),
        notice="DeepSpeed's engine reduces gradients",
    ),
)
