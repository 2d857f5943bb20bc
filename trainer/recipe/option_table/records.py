"""Options of a training's input and records: evaluations, logs, data, and checkpoints."""

from __future__ import annotations

from trainer.recipe.identity import TRAINING
from trainer.recipe.option_table.row import Option, count, flag, group, option

_LEVELS = ("debug", "info", "warning", "error", "critical")
_MAPPED = "data files are always mapped, and read as they are needed"

EVALUATION: tuple[Option, ...] = group(
    "evaluation",
    count("--eval-interval", "Iterations between evaluations.", "iterations", default=1000),
    count("--eval-iters", "Batches of one evaluation; 0 never evaluates.", "iterations", default=100, at_least=0),
    flag(
        "--eval-only",
        "Evaluate the checkpoint of --load on each validation and test set; do not train.",
        table="opsctl",
    ),
    flag("--no-train", "The same as --eval-only.", table="opsctl"),
    flag("--skip-train", "The same as --eval-only, as Megatron-LM names it.", table="opsctl"),
)

LOGGING: tuple[Option, ...] = group(
    "logging",
    count("--log-interval", "Iterations per log line.", "iterations", default=100),
    option(
        "--peak-tflops",
        float,
        None,
        "Dense TFLOP/s of one device for MFU; known for common GPUs.",
        "TFLOP/s",
        at_least=0.001,
    ),
    flag("--log-params-norm", "Log the norm of all parameters."),
    option("--log-level", str, "warning", "DeepSpeed's log level on rank 0.", choices=_LEVELS),
    option("--log-level-replica", str, "error", "DeepSpeed's log level on the other ranks.", choices=_LEVELS),
    count("--tensorboard-log-interval", "Iterations between TensorBoard points.", "iterations", default=1),
    count("--tensorboard-queue-size", "Points kept before TensorBoard writes.", default=1000),
    option("--wandb-project", str, None, "Also write curves for wandb, under this project; needs its package."),
    option("--wandb-exp-name", str, None, "Name of the run in wandb."),
    option("--wandb-entity", str, None, "Team or account of the project in wandb."),
    option("--wandb-save-dir", str, None, "Folder of wandb's files; TensorBoard's when not given."),
    option(
        "--wandb-mode",
        str,
        "offline",
        "Keep points in the folder for `wandb sync`, or send them at once.",
        choices=("offline", "online"),
    ),
    flag("--log-timers-to-tensorboard", "Write times to TensorBoard."),
    flag("--log-batch-size-to-tensorboard", "Write the batch size to TensorBoard."),
    flag("--log-validation-ppl-to-tensorboard", "Write the validation perplexity to TensorBoard."),
    flag("--no-log-learnig-rate-to-tensorboard", "Leave the learning rate out of TensorBoard (Megatron's spelling)."),
    flag("--no-log-loss-scale-to-tensorboard", "Leave the loss scale out of TensorBoard."),
)

DATA: tuple[Option, ...] = group(
    "data",
    option("--data-path", str, None, "One data prefix, or WEIGHT PREFIX WEIGHT PREFIX ...", nargs="+"),
    option("--split", str, "969, 30, 1", "Shares of train, validation and test documents."),
    option("--train-weighted-split-paths", str, None, 'One group, "NAME: WEIGHT START:END PREFIX, ...".', nargs="+"),
    option("--valid-weighted-split-paths", str, None, "The same, one group per validation set.", nargs="+"),
    option("--test-weighted-split-paths", str, None, "The same, one group per test set.", nargs="+"),
    option("--train-weighted-split-paths-path", str, None, "A file with the training groups."),
    option("--valid-weighted-split-paths-path", str, None, "A file with the validation groups."),
    option("--test-weighted-split-paths-path", str, None, "A file with the test groups."),
    option("--data-impl", str, "infer", "How data files are read.", choices=("infer", "mmap"), notice=_MAPPED),
    option("--data-cache-path", str, None, "Folder of the sample-order files; beside the data when not given."),
    option(
        "--separate-last-epoch-threshold",
        float,
        0.8,
        "Share of an epoch below which the last one is shuffled separately.",
        at_least=0,
    ),
    option(
        "--dataloader-type",
        str,
        "single",
        "Order of the samples.",
        choices=("single",),
        notice="there is no other order",
    ),
    count("--num-workers", "Threads per rank that read training data ahead.", default=0, at_least=0, below=10_000),
    count(
        "--valid-num-workers", "Threads per rank that read validation data ahead.", default=0, at_least=0, below=10_000
    ),
    option(
        "--tokenizer-type",
        str,
        None,
        "Kind of the tokenizer; by default it follows from the given files.",
        choices=("GPT2BPETokenizer", "PretrainedFromHF", "TokenizerFile"),
    ),
    option("--tokenizer-name-or-path", str, None, "The tokenizer's name, folder or tokenizer.json."),
    option("--vocab-file", str, None, "GPT-2's vocab.json."),
    option("--merge-file", str, None, "GPT-2's merges.txt."),
    count("--vocab-size", "Size of the vocabulary before padding, instead of a tokenizer's.", "tokens"),
    flag("--eod-mask-loss", "No loss where the input is the end-of-document token."),
    flag("--mmap-warmup", "Read data files once before training.", notice=_MAPPED),
    table="data",
)

CHECKPOINTS: tuple[Option, ...] = group(
    "checkpoints",
    count("--save-interval", "Iterations between checkpoints.", "iterations"),
    option(
        "--save-schedule",
        str,
        None,
        "Intervals per phase: 10:100 18:1000 1500 saves every 10 up to iteration 100, and so on.",
        nargs="+",
    ),
    option(
        "--save-iterations",
        int,
        None,
        "Also save these iterations; they are pinned and never pruned.",
        "iterations",
        nargs="+",
        at_least=1,
    ),
    flag("--async-save", "Write checkpoints while the training continues, from a copy in host memory."),
    flag("--save-non-finite", "Save states with NaN or infinite values too, marked; otherwise they are never saved."),
    flag("--no-save-optim", "Leave optimizer states out of checkpoints."),
    flag("--no-save-rng", "Leave random states out of checkpoints."),
    flag("--no-load-optim", "Start with fresh optimizer states."),
    flag("--no-load-rng", "Start with fresh random states."),
    flag("--finetune", "Load weights only and start at iteration 0."),
    count("--load-step", "Load this iteration's checkpoint instead of the latest.", "iterations", at_least=0),
    option(
        "--allow-changed",
        str,
        None,
        "Resume a checkpoint of another training if only these facts differ.",
        nargs="+",
        choices=tuple(fact.name for fact in TRAINING),
    ),
    flag("--no-verify-checkpoint-checksums", "Check only the sizes of files before loading, not their contents."),
    flag(
        "--verify-checkpoint-checksums",
        "Compare every file's checksum before loading.",
        notice="checksums are compared unless --no-verify-checkpoint-checksums is given",
    ),
    flag("--load-fallback", "If the latest checkpoint is damaged, resume from the newest complete one before it."),
    table="checkpoints",
)
