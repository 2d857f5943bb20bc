"""Options of a training's input and records: evaluations, logs, data, and checkpoints."""

from __future__ import annotations

from trainer.recipe.identity import TRAINING
from trainer.recipe.option_table.row import Option, choice, count, flag, group, number, option, text

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
    number("--peak-tflops", "Dense TFLOP/s of one device for MFU; known for common GPUs.", "TFLOP/s", at_least=0.001),
    flag("--log-params-norm", "Log the norm of all parameters."),
    choice("--log-level", _LEVELS, "warning", "DeepSpeed's log level on rank 0."),
    choice("--log-level-replica", _LEVELS, "error", "DeepSpeed's log level on the other ranks."),
    count("--tensorboard-log-interval", "Iterations between TensorBoard points.", "iterations", default=1),
    count("--tensorboard-queue-size", "Points kept before TensorBoard writes.", default=1000),
    text("--wandb-project", "Also write curves for wandb, under this project; needs its package."),
    text("--wandb-exp-name", "Name of the run in wandb."),
    text("--wandb-entity", "Team or account of the project in wandb."),
    text("--wandb-save-dir", "Folder of wandb's files; TensorBoard's when not given."),
    choice(
        "--wandb-mode",
        ("offline", "online"),
        "offline",
        "Keep points in the folder for `wandb sync`, or send them at once.",
    ),
    flag("--log-timers-to-tensorboard", "Write times to TensorBoard."),
    flag("--log-batch-size-to-tensorboard", "Write the batch size to TensorBoard."),
    flag("--log-validation-ppl-to-tensorboard", "Write the validation perplexity to TensorBoard."),
    flag("--no-log-learnig-rate-to-tensorboard", "Leave the learning rate out of TensorBoard (Megatron's spelling)."),
    flag("--no-log-loss-scale-to-tensorboard", "Leave the loss scale out of TensorBoard."),
)

DATA: tuple[Option, ...] = group(
    "data",
    text("--data-path", "One data prefix, or WEIGHT PREFIX WEIGHT PREFIX ...", nargs="+"),
    option("--split", str, "969, 30, 1", "Shares of train, validation and test documents."),
    text("--train-weighted-split-paths", 'One group, "NAME: WEIGHT START:END PREFIX, ...".', nargs="+"),
    text("--valid-weighted-split-paths", "The same, one group per validation set.", nargs="+"),
    text("--test-weighted-split-paths", "The same, one group per test set.", nargs="+"),
    text("--train-weighted-split-paths-path", "A file with the training groups."),
    text("--valid-weighted-split-paths-path", "A file with the validation groups."),
    text("--test-weighted-split-paths-path", "A file with the test groups."),
    choice("--data-impl", ("infer", "mmap"), "infer", "How data files are read.", notice=_MAPPED),
    text("--data-cache-path", "Folder of the sample-order files [default: next to the data]."),
    number(
        "--separate-last-epoch-threshold",
        "Share of an epoch below which the last one is shuffled separately.",
        default=0.8,
        at_least=0,
    ),
    choice("--dataloader-type", ("single",), "single", "Order of the samples.", notice="there is no other order"),
    count("--num-workers", "Threads per rank that read training data ahead.", default=0, at_least=0, below=10_000),
    count(
        "--valid-num-workers", "Threads per rank that read validation data ahead.", default=0, at_least=0, below=10_000
    ),
    choice(
        "--tokenizer-type",
        ("GPT2BPETokenizer", "PretrainedFromHF", "TokenizerFile"),
        None,
        "Kind of the tokenizer; by default it follows from the given files.",
    ),
    text("--tokenizer-name-or-path", "The tokenizer's name, folder or tokenizer.json."),
    text("--vocab-file", "GPT-2's vocab.json."),
    text("--merge-file", "GPT-2's merges.txt."),
    count("--vocab-size", "Size of the vocabulary before padding, instead of a tokenizer's.", "tokens"),
    flag("--reset-attention-mask", "A token attends to its own document alone."),
    flag("--reset-position-ids", "Positions begin again in each document of a sample."),
    flag("--eod-mask-loss", "No loss where the input is the end-of-document token."),
    flag("--mmap-warmup", "Read data files once before training.", notice=_MAPPED),
    table="data",
)

CHECKPOINTS: tuple[Option, ...] = group(
    "checkpoints",
    count("--save-interval", "Iterations between checkpoints.", "iterations"),
    text(
        "--save-schedule",
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
    count(
        "--snapshot-interval",
        "Iterations between snapshots in host memory, with a copy on the next node, for restarts in the same job.",
        "iterations",
    ),
    flag("--save-non-finite", "Save states with NaN or infinite values too, marked; otherwise they are never saved."),
    flag("--no-save-optim", "Leave optimizer states out of checkpoints."),
    flag("--no-save-rng", "Leave random states out of checkpoints."),
    flag("--no-load-optim", "Start with fresh optimizer states."),
    flag("--no-load-rng", "Start with fresh random states."),
    flag("--finetune", "Load weights only and start at iteration 0."),
    count("--load-step", "Load this iteration's checkpoint instead of the latest.", "iterations", at_least=0),
    text(
        "--allow-changed",
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
