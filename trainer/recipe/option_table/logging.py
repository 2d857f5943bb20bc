"""What is written of a training while it goes."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, flag, group, option

OPTIONS: tuple[Option, ...] = group(
    "logging",
    option("--log-interval", int, 100, "Iterations per log line.", unit="iterations", at_least=1),
    option(
        "--peak-tflops",
        float,
        None,
        "Dense TFLOP/s of one device, against which MFU is; of common GPUs in bf16 and fp16 it is known.",
        unit="TFLOP/s",
        at_least=0.001,
    ),
    flag("--log-params-norm", "Log the norm of all parameters."),
    option(
        "--log-level",
        str,
        "warning",
        "What DeepSpeed prints on rank 0.",
        choices=("debug", "info", "warning", "error", "critical"),
    ),
    option(
        "--log-level-replica",
        str,
        "error",
        "What DeepSpeed prints elsewhere.",
        choices=("debug", "info", "warning", "error", "critical"),
    ),
    option(
        "--tensorboard-log-interval",
        int,
        1,
        "Iterations between TensorBoard points.",
        unit="iterations",
        at_least=1,
    ),
    option("--tensorboard-queue-size", int, 1000, "Points kept before TensorBoard writes.", at_least=1),
    option("--wandb-project", str, None, "Write curves for wandb too, under this project; needs its package."),
    option("--wandb-exp-name", str, None, "Name of the run in wandb; one of its own when not given."),
    option("--wandb-entity", str, None, "Team or account of the project in wandb."),
    option("--wandb-save-dir", str, None, "Folder of wandb's files; TensorBoard's when not given."),
    option(
        "--wandb-mode",
        str,
        "offline",
        "Keep points in that folder, for `wandb sync` to send, or send them at once, which needs a key.",
        choices=("offline", "online"),
    ),
    flag("--log-timers-to-tensorboard", "Write times to TensorBoard."),
    flag("--log-batch-size-to-tensorboard", "Write the batch size to TensorBoard."),
    flag("--log-validation-ppl-to-tensorboard", "Write the validation perplexity to TensorBoard."),
    flag("--no-log-learnig-rate-to-tensorboard", "Leave the learning rate out of TensorBoard (Megatron's spelling)."),
    flag("--no-log-loss-scale-to-tensorboard", "Leave the loss scale out of TensorBoard."),
)
