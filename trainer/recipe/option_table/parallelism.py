"""How the model is laid out over ranks."""

from __future__ import annotations

from trainer.recipe.layout import BY_BLOCK, BY_BLOCK_AND_EMBEDDING
from trainer.recipe.option_table.row import Option, flag, group, option

OPTIONS: tuple[Option, ...] = group(
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
