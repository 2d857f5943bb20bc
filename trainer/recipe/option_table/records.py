"""Options of a training's input and records: evaluations, logs, data, and checkpoints."""

from __future__ import annotations

from trainer.recipe.identity import TRAINING
from trainer.recipe.option_table.row import Option, flag, group, option

EVALUATION: tuple[Option, ...] = group(
    "evaluation",
    option("--eval-interval", int, 1000, "Iterations between evaluations.", unit="iterations", at_least=1),
    option("--eval-iters", int, 100, "Batches of one evaluation; 0 never evaluates.", unit="iterations", at_least=0),
    flag(
        "--eval-only",
        "Evaluate --load's checkpoint on each validation and test set; train nothing.",
        table="opsctl",
    ),
    flag("--no-train", "The same as --eval-only.", table="opsctl"),
    flag("--skip-train", "The same as --eval-only, as Megatron-LM names it.", table="opsctl"),
)


LOGGING: tuple[Option, ...] = group(
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


_MAPPED = "data files are always mapped, and read as they are needed"

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
        "--data-node-cache-path",
        str,
        None,
        "Folder on each node's own disk for copies of indices and orders; $VARIABLES are the node's.",
    ),
    option(
        "--separate-last-epoch-threshold",
        float,
        0.80,
        "Shuffle the last epoch apart below this share of a full one's samples; BigScience's was 0.95.",
        at_least=0,
    ),
    option(
        "--dataloader-type",
        str,
        "single",
        "Samples in the order of the seed.",
        choices=("single",),
        notice="there is no other order",
    ),
    option(
        "--num-workers", int, 0, "Threads per rank that read training data ahead; 0: no need.", at_least=0, below=10_000
    ),
    option(
        "--valid-num-workers", int, 0, "Threads per rank that read validation data ahead.", at_least=0, below=10_000
    ),
    option(
        "--tokenizer-type",
        str,
        None,
        "Vocabulary and merges, a Hugging Face name or folder, or a tokenizer.json; by what is given.",
        choices=("GPT2BPETokenizer", "PretrainedFromHF", "TokenizerFile"),
    ),
    option("--tokenizer-name-or-path", str, None, "The tokenizer's name, folder or tokenizer.json."),
    option("--vocab-file", str, None, "GPT-2's vocab.json."),
    option("--merge-file", str, None, "GPT-2's merges.txt."),
    option(
        "--vocab-size",
        int,
        None,
        "Size of the vocabulary before padding, instead of asking a tokenizer.",
        unit="tokens",
        at_least=1,
        below=2**31,
    ),
    flag("--eod-mask-loss", "No loss where the input is the end-of-document token."),
    flag("--mmap-warmup", "Read data files once before training.", notice=_MAPPED),
    table="data",
)


CHECKPOINTS: tuple[Option, ...] = group(
    "checkpoints",
    option("--save-interval", int, None, "Iterations between checkpoints.", unit="iterations", at_least=1),
    option(
        "--save-schedule",
        str,
        None,
        "Instead of one interval: INTERVAL:LAST ... INTERVAL, so 10:100 18:1000 1500 saves what 10 divides up to "
        "iteration 100, what 18 divides up to 1000, then what 1500 divides.",
        nargs="+",
    ),
    option(
        "--save-iterations",
        int,
        None,
        "Save these too; what they leave is pinned and never pruned.",
        unit="iterations",
        nargs="+",
        at_least=1,
    ),
    flag(
        "--async-save",
        "Write checkpoints while the training goes on, from a copy of a rank's files in the host's memory.",
    ),
    flag(
        "--save-non-finite",
        "Save a state with NaN or infinite weights, optimizer states or loss too, marked as such; without this option "
        "it is not saved, and the training resumes from the last finite checkpoint.",
    ),
    flag("--no-save-optim", "Leave optimizer states out of checkpoints."),
    flag("--no-save-rng", "Leave random states out of checkpoints."),
    flag("--no-load-optim", "Start with fresh optimizer states."),
    flag("--no-load-rng", "Start with fresh random states."),
    flag("--finetune", "Load weights only and start at iteration 0."),
    option(
        "--load-step",
        int,
        None,
        "Start at this iteration's checkpoint, not at the latest. Later starts resume from its successors.",
        unit="iterations",
        at_least=0,
    ),
    option(
        "--allow-changed",
        str,
        None,
        "Resume a checkpoint of another training if only these facts differ; recorded in the manifest.",
        choices=tuple(fact.name for fact in TRAINING),
        nargs="+",
    ),
    flag("--no-verify-checkpoint-checksums", "Look at files' sizes alone before loading, not at their contents."),
    flag(
        "--verify-checkpoint-checksums",
        "Compare every file's checksum before loading.",
        notice="checksums are compared unless --no-verify-checkpoint-checksums is given",
    ),
    flag(
        "--load-fallback",
        "If the latest checkpoint is damaged, resume from the newest complete one before it; recorded.",
    ),
    table="checkpoints",
)
