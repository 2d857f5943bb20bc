"""Every option of the trainer, once: name, type, default, unit, help, and the run-file table that holds it.

`trainer.recipe.options` reads this table for the command line, the run-file check and the documentation. Names are
Megatron-LM's and BigScience's. What those programs have and this one has not is in REFUSED with the reason: nobody's
option is dropped in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainer.recipe.identity import TRAINING
from trainer.recipe.layout import BY_BLOCK, BY_BLOCK_AND_EMBEDDING


@dataclass(frozen=True)
class Option:
    """One option. `type` is the type of one value: int, float, str or bool (bool: a flag, alone on the command line).

    nargs: None for one value, a number for exactly so many, "+" for one or more. Both bounds concern each single value.
    notice: printed once when the option is given, because giving it changes nothing here.
    """

    name: str
    type: type
    default: Any
    help: str
    group: str
    table: str = "trainer"
    unit: str = ""
    choices: tuple[Any, ...] = ()
    nargs: int | str | None = None
    at_least: float | None = None
    below: float | None = None
    notice: str = ""

    @property
    def key(self) -> str:
        """The option's name in a run file and as an attribute: `num_layers` for `--num-layers`."""
        return self.name.removeprefix("--").replace("-", "_")


def _group(group: str, *rows: dict[str, Any], table: str = "trainer") -> tuple[Option, ...]:
    return tuple(Option(group=group, **{"table": table, **row}) for row in rows)


def _option(name: str, type_: type, default: Any, help_: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, "default": default, "help": help_, **more}


def _flag(name: str, help_: str, **more: Any) -> dict[str, Any]:
    return _option(name, bool, False, help_, **more)


_NO_FUSED_KERNELS = "no fused kernel is chosen by hand here"
_MAPPED = "data files are always mapped, and read as they are needed"

OPTIONS: tuple[Option, ...] = (
    *_group(
        "network",
        _option("--num-layers", int, None, "Transformer blocks.", at_least=1),
        _option("--hidden-size", int, None, "Width of the residual stream.", at_least=1),
        _option("--ffn-hidden-size", int, None, "Width inside the MLP; 4 x hidden size when not given.", at_least=1),
        _option("--num-attention-heads", int, None, "Attention heads of the whole model.", at_least=1),
        _option("--kv-channels", int, None, "Width of one head; hidden size / heads when not given.", at_least=1),
        _option("--seq-length", int, None, "Length of a training sample.", unit="tokens", at_least=1),
        _option(
            "--max-position-embeddings",
            int,
            None,
            "Learned positions; the sequence length when not given.",
            unit="tokens",
            at_least=1,
        ),
        _option(
            "--position-embedding-type",
            str,
            "absolute",
            "Learned positions (absolute) or ALiBi.",
            choices=("absolute", "alibi"),
        ),
        _option(
            "--make-vocab-size-divisible-by",
            int,
            128,
            "The vocabulary is padded to a multiple of this x TP.",
            unit="tokens",
            at_least=1,
        ),
        _option(
            "--pad-vocab-size-to",
            int,
            None,
            "Pad the vocabulary to exactly this size instead.",
            unit="tokens",
            at_least=1,
        ),
        _option("--layernorm-epsilon", float, 1e-5, "Added to the variance in every LayerNorm.", at_least=0),
        _flag("--embed-layernorm", "LayerNorm after the word embedding."),
        _flag(
            "--sync-tp-duplicated-parameters",
            "Average what tensor-parallel ranks hold in common before every step.",
        ),
        _flag("--apply-residual-connection-post-layernorm", "Take the residual from the LayerNorm's output."),
        _flag("--openai-gelu", "The tanh form of GeLU (the default; wins over --no-bias-gelu-fusion)."),
        _flag("--no-bias-gelu-fusion", "The exact (erf) form of GeLU, which Megatron's unfused path computes."),
        _flag("--no-masked-softmax-fusion", "Megatron's unfused softmax.", notice=_NO_FUSED_KERNELS),
        _flag("--no-bias-dropout-fusion", "Megatron's unfused bias and dropout.", notice=_NO_FUSED_KERNELS),
        _flag(
            "--abort-on-unmet-fused-kernel-constraints",
            "Stop when a fused kernel cannot be used.",
            notice=_NO_FUSED_KERNELS,
        ),
        _flag(
            "--no-query-key-layer-scaling",
            "Scores scaled by the head size alone.",
            notice="scores are never scaled by the layer number",
        ),
        _flag("--attention-softmax-in-fp32", "Softmax sums in fp32.", notice="softmax always sums in fp32"),
    ),
    *_group(
        "regularization",
        _option("--attention-dropout", float, 0.1, "Dropout of the attention's probabilities.", at_least=0, below=1),
        _option(
            "--hidden-dropout", float, 0.1, "Dropout of embeddings, attention and MLP outputs.", at_least=0, below=1
        ),
        _option(
            "--weight-decay",
            float,
            0.01,
            "Weight decay, with adam decoupled; none on biases and LayerNorms.",
            at_least=0,
        ),
        _option("--clip-grad", float, 1.0, "Largest norm of the gradient; 0 clips nothing.", at_least=0),
        _option("--optimizer", str, "adam", "AdamW, or SGD with momentum.", choices=("adam", "sgd")),
        _option("--adam-beta1", float, 0.9, "Adam's decay of the first moment.", at_least=0, below=1),
        _option("--adam-beta2", float, 0.999, "Adam's decay of the second moment.", at_least=0, below=1),
        _option("--adam-eps", float, 1e-8, "Added to Adam's denominator.", at_least=0),
        _option("--sgd-momentum", float, 0.9, "SGD's momentum.", at_least=0, below=1),
    ),
    *_group(
        "training",
        _option(
            "--micro-batch-size", int, None, "Samples one pipeline works on at a time.", unit="samples", at_least=1
        ),
        _option(
            "--global-batch-size",
            int,
            None,
            "Samples of one step; micro-batch x DP when not given.",
            unit="samples",
            at_least=1,
        ),
        _option(
            "--rampup-batch-size",
            int,
            None,
            "START INCREMENT SAMPLES: grow the batch over so many samples.",
            unit="samples",
            nargs=3,
            at_least=1,
        ),
        _option("--train-iters", int, None, "Length of the training.", unit="iterations", at_least=1),
        _option("--train-samples", int, None, "Length of the training.", unit="samples", at_least=1),
        _option(
            "--train-tokens",
            int,
            None,
            "Length of the training: the step that reaches them is the last; of two lengths the sooner.",
            unit="tokens",
            at_least=1,
        ),
        _option(
            "--exit-interval",
            int,
            None,
            "Leave when the iteration is a multiple of this.",
            unit="iterations",
            at_least=1,
        ),
        _flag("--deterministic", "The same bits from the same start: no faster way whose order of sums may differ."),
        _option(
            "--check-replicas-interval",
            int,
            100,
            "Compare what several ranks hold in common this often and before each save; 0: never.",
            unit="iterations",
            at_least=0,
        ),
        _option(
            "--exit-after-iters",
            int,
            None,
            "Leave after so many iterations of this start.",
            unit="iterations",
            at_least=1,
        ),
        _option(
            "--exit-samples",
            int,
            None,
            "Leave once so many samples are consumed, also when a later start begins there.",
            unit="samples",
            at_least=1,
        ),
        _option("--seed", int, 1234, "Seed of weights, dropout and data order.", at_least=0, below=2**32),
        _flag(
            "--checkpoint-activations",
            "Keep only what enters each block and compute the rest again in the backward pass.",
        ),
        _flag("--deepspeed-activation-checkpointing", "The same as --checkpoint-activations."),
        _flag(
            "--partition-activations",
            "Of what enters recomputed blocks each tensor-parallel rank keeps its part, and the backward pass gathers.",
        ),
        _flag("--distribute-checkpointed-activations", "The same as --partition-activations."),
        _option("--checkpoint-num-layers", int, 1, "Blocks recomputed together.", unit="blocks", at_least=1),
    ),
    *_group(
        "initialization",
        _option("--init-method-std", float, 0.02, "Standard deviation of the initial weights.", at_least=0),
        _flag(
            "--use-cpu-initialization",
            "Draw initial weights on the CPU.",
            notice="initial weights are always drawn on the CPU",
        ),
    ),
    *_group(
        "learning rate",
        _option("--lr", float, None, "Highest learning rate.", at_least=0),
        _option("--min-lr", float, 0.0, "Lowest learning rate after the warm-up.", at_least=0),
        _option("--lr-decay-style", str, "linear", "Shape of the decay.", choices=("constant", "linear", "cosine")),
        _option(
            "--lr-decay-iters",
            int,
            None,
            "Length of the decay; the whole training when not given.",
            unit="iterations",
            at_least=1,
        ),
        _option(
            "--lr-decay-samples",
            int,
            None,
            "Length of the decay; the whole training when not given.",
            unit="samples",
            at_least=1,
        ),
        _option("--lr-warmup-fraction", float, None, "Warm-up as a share of the decay's length.", at_least=0, below=1),
        _option("--lr-warmup-iters", int, 0, "Length of the linear warm-up.", unit="iterations", at_least=0),
        _option("--lr-warmup-samples", int, 0, "Length of the linear warm-up.", unit="samples", at_least=0),
        _flag("--override-lr-scheduler", "Where a checkpoint's schedule differs, take this command line's."),
        _flag("--use-checkpoint-lr-scheduler", "Where a checkpoint's schedule differs, take the checkpoint's."),
    ),
    *_group(
        "precision",
        _flag("--bf16", "bfloat16 weights and activations, fp32 sums of gradients and master weights."),
        _flag("--fp16", "float16 with loss scaling; needs a GPU."),
        _option("--loss-scale", float, None, "Fixed fp16 loss scale; dynamic when not given.", at_least=0),
        _option("--initial-loss-scale", int, 2**32, "First dynamic loss scale, a power of two.", at_least=1),
        _option("--min-loss-scale", float, 1.0, "Lowest dynamic loss scale.", at_least=0),
        _option(
            "--loss-scale-window",
            int,
            1000,
            "Steps without overflow before the scale doubles.",
            unit="iterations",
            at_least=1,
        ),
        _option("--hysteresis", int, 2, "Overflows before the scale halves.", at_least=1),
        _flag(
            "--accumulate-allreduce-grads-in-fp32",
            "Add gradients up in fp32, over micro-batches and replicas (bf16 always does).",
        ),
    ),
    *_group(
        "parallelism",
        _option("--tensor-model-parallel-size", int, 1, "Ranks that share every block (TP).", unit="ranks", at_least=1),
        _option("--pipeline-model-parallel-size", int, 1, "Pipeline stages (PP).", unit="stages", at_least=1),
        _option(
            "--pp-partition-method",
            str,
            BY_BLOCK,
            "What pipeline stages have an equal number of.",
            choices=(BY_BLOCK, BY_BLOCK_AND_EMBEDDING),
        ),
        _option(
            "--distributed-backend", str, None, "gloo or nccl; by the device when not given.", choices=("nccl", "gloo")
        ),
        _option(
            "--distributed-timeout-minutes",
            float,
            30.0,
            "Longest wait for another rank.",
            unit="minutes",
            at_least=0.01,
        ),
        _option(
            "--zero-stage",
            int,
            1,
            "Optimizer states are sharded over DP; with --bf16 stage 0 is taken and does the same.",
            choices=(0, 1),
        ),
        _option(
            "--zero-reduce-bucket-size", int, 500_000_000, "Gradients reduced at once.", unit="elements", at_least=1
        ),
        _option(
            "--zero-allgather-bucket-size", int, 500_000_000, "Weights gathered at once.", unit="elements", at_least=1
        ),
        _option(
            "--DDP-impl",
            str,
            "local",
            "Megatron's data parallelism.",
            choices=("local", "torch"),
            notice="DeepSpeed's engine reduces gradients",
        ),
    ),
    *_group(
        "evaluation",
        _option("--eval-interval", int, 1000, "Iterations between evaluations.", unit="iterations", at_least=1),
        _option(
            "--eval-iters", int, 100, "Batches of one evaluation; 0 never evaluates.", unit="iterations", at_least=0
        ),
    ),
    *_group(
        "logging",
        _option("--log-interval", int, 100, "Iterations per log line.", unit="iterations", at_least=1),
        _flag("--log-params-norm", "Log the norm of all parameters."),
        _option(
            "--log-level",
            str,
            "warning",
            "What DeepSpeed prints on rank 0.",
            choices=("debug", "info", "warning", "error", "critical"),
        ),
        _option(
            "--log-level-replica",
            str,
            "error",
            "What DeepSpeed prints elsewhere.",
            choices=("debug", "info", "warning", "error", "critical"),
        ),
        _option(
            "--tensorboard-log-interval",
            int,
            1,
            "Iterations between TensorBoard points.",
            unit="iterations",
            at_least=1,
        ),
        _option("--tensorboard-queue-size", int, 1000, "Points kept before TensorBoard writes.", at_least=1),
        _flag("--log-timers-to-tensorboard", "Write times to TensorBoard."),
        _flag("--log-batch-size-to-tensorboard", "Write the batch size to TensorBoard."),
        _flag("--log-validation-ppl-to-tensorboard", "Write the validation perplexity to TensorBoard."),
        _flag(
            "--no-log-learnig-rate-to-tensorboard", "Leave the learning rate out of TensorBoard (Megatron's spelling)."
        ),
        _flag("--no-log-loss-scale-to-tensorboard", "Leave the loss scale out of TensorBoard."),
    ),
    *_group(
        "data",
        _option("--data-path", str, None, "One data prefix, or WEIGHT PREFIX WEIGHT PREFIX ...", nargs="+"),
        _option("--split", str, "969, 30, 1", "Shares of train, validation and test documents."),
        _option(
            "--train-weighted-split-paths", str, None, 'One group, "NAME: WEIGHT START:END PREFIX, ...".', nargs="+"
        ),
        _option("--valid-weighted-split-paths", str, None, "The same, one group per validation set.", nargs="+"),
        _option("--test-weighted-split-paths", str, None, "The same, one group per test set.", nargs="+"),
        _option("--train-weighted-split-paths-path", str, None, "A file with the training groups."),
        _option("--valid-weighted-split-paths-path", str, None, "A file with the validation groups."),
        _option("--test-weighted-split-paths-path", str, None, "A file with the test groups."),
        _option("--data-impl", str, "infer", "How data files are read.", choices=("infer", "mmap"), notice=_MAPPED),
        _option("--data-cache-path", str, None, "Folder of the sample-order files; beside the data when not given."),
        _option(
            "--separate-last-epoch-threshold",
            float,
            0.80,
            "Shuffle the last epoch apart below this share of a full one's samples; BigScience's was 0.95.",
            at_least=0,
        ),
        _option(
            "--dataloader-type",
            str,
            "single",
            "Samples in the order of the seed.",
            choices=("single",),
            notice="there is no other order",
        ),
        _option("--num-workers", int, 0, "Threads per rank that read training data ahead; 0: no need.", at_least=0),
        _option("--valid-num-workers", int, 0, "Threads per rank that read validation data ahead.", at_least=0),
        _option(
            "--tokenizer-type",
            str,
            None,
            "Vocabulary and merges, a Hugging Face name or folder, or a tokenizer.json; by what is given.",
            choices=("GPT2BPETokenizer", "PretrainedFromHF", "TokenizerFile"),
        ),
        _option("--tokenizer-name-or-path", str, None, "The tokenizer's name, folder or tokenizer.json."),
        _option("--vocab-file", str, None, "GPT-2's vocab.json."),
        _option("--merge-file", str, None, "GPT-2's merges.txt."),
        _option(
            "--vocab-size",
            int,
            None,
            "Size of the vocabulary before padding, instead of asking a tokenizer.",
            unit="tokens",
            at_least=1,
        ),
        _flag("--eod-mask-loss", "No loss where the input is the end-of-document token."),
        _flag("--mmap-warmup", "Read data files once before training.", notice=_MAPPED),
        table="data",
    ),
    *_group(
        "checkpoints",
        _option("--save-interval", int, None, "Iterations between checkpoints.", unit="iterations", at_least=1),
        _option(
            "--save-schedule",
            str,
            None,
            "Instead of one interval: INTERVAL:LAST ... INTERVAL, so 10:100 18:1000 1500 saves what 10 divides up to "
            "iteration 100, what 18 divides up to 1000, then what 1500 divides.",
            nargs="+",
        ),
        _option(
            "--save-iterations",
            int,
            None,
            "Save these too; what they leave is pinned and never pruned.",
            unit="iterations",
            nargs="+",
            at_least=1,
        ),
        _flag(
            "--async-save",
            "Write checkpoints while the training goes on, from a copy of a rank's files in the host's memory.",
        ),
        _flag("--no-save-optim", "Leave optimizer states out of checkpoints."),
        _flag("--no-save-rng", "Leave random states out of checkpoints."),
        _flag("--no-load-optim", "Start with fresh optimizer states."),
        _flag("--no-load-rng", "Start with fresh random states."),
        _flag("--finetune", "Load weights only and start at iteration 0."),
        _option(
            "--load-step",
            int,
            None,
            "Begin at this iteration's checkpoint, not at the latest; later starts go on from what came of it.",
            unit="iterations",
            at_least=0,
        ),
        _option(
            "--allow-changed",
            str,
            None,
            "Go on from a checkpoint of another training, if no more than these are others; on record in the manifest.",
            choices=tuple(fact.name for fact in TRAINING),
            nargs="+",
        ),
        _flag("--no-verify-checkpoint-checksums", "Look at files' sizes alone before loading, not at their contents."),
        _flag(
            "--verify-checkpoint-checksums",
            "Compare every file's checksum before loading.",
            notice="checksums are compared unless --no-verify-checkpoint-checksums is given",
        ),
        _flag(
            "--load-fallback",
            "Where the latest checkpoint is damaged, go on from the newest complete one before it, on record.",
        ),
        table="checkpoints",
    ),
    *_group(
        "set by opsctl",
        _option("--save", str, None, "Folder that checkpoints are written to."),
        _option("--load", str, None, "Folder that the latest checkpoint is read from."),
        _option("--tensorboard-dir", str, None, "Folder of the TensorBoard files."),
        _option("--log-path", str, None, "Folder for a copy of the arguments."),
        _option("--codecarbon-dir", str, None, "Folder of the energy records: measures with codecarbon, offline."),
        _option("--carbon-country", str, None, "Where the electricity comes from, three letters: FRA."),
        _option("--carbon-region", str, None, "Region of that country, where codecarbon knows its electricity."),
        _option(
            "--carbon-intensity-g-per-kwh",
            float,
            None,
            "The electricity's CO2e in place of the country's.",
            unit="g/kWh",
            at_least=0,
        ),
        _option("--kill-switch-path", str, None, "When this file exists: save, leave, exit 0."),
        _option("--stop-request-path", str, None, "As the kill switch, for this job alone."),
        _option("--save-request-path", str, None, "When this file exists: save once and train on."),
        _option(
            "--lease-path", str, None, "Lease on the training: checked at the start and before a checkpoint counts."
        ),
        _option("--lease-number", int, None, "The number under which this job has taken the lease.", at_least=1),
        _option("--exit-report-path", str, None, "File that says why the trainer left and at which iteration."),
        _option("--exit-duration-in-mins", float, None, "Save and leave after this long.", unit="minutes", at_least=0),
        _option(
            "--exit-margin-in-mins",
            float,
            None,
            "Longest last save, a minute at least; the distributed timeout when not given.",
            unit="minutes",
            at_least=0,
        ),
        _flag("--deepspeed", "Train through DeepSpeed.", notice="training is always through DeepSpeed"),
        _option("--deepspeed-config", str, None, "A DeepSpeed JSON file that adds to what follows from the options."),
        _option(
            "--local-rank",
            int,
            None,
            "Older launchers' rank on the node; LOCAL_RANK counts.",
            notice="LOCAL_RANK says the local rank",
        ),
        table="opsctl",
    ),
)

_LATER = "this trainer cannot do it"
REFUSED: dict[str, str] = {
    "--batch-size": "gone from Megatron too: give --micro-batch-size",
    "--warmup": "gone from Megatron too: give --lr-warmup-fraction",
    "--model-parallel-size": "gone from Megatron too: give --tensor-model-parallel-size",
    "--num-layers-per-virtual-pipeline-stage": "DeepSpeed's pipeline has no interleaved stages",
    "--checkpoint-in-cpu": "recomputation keeps each block's input on the device: leave the option out",
    "--cpu-optimizer": "optimizer states stay on the device and are sharded over DP: leave the option out",
    "--use-bnb-optimizer": "there is no 8-bit optimizer here: give --optimizer adam",
    "--glu-activation": "the MLP is GeLU: leave the option out",
    "--fp32-residual-connection": "the residual stream has the weights' type: leave the option out",
    "--fp16-lm-cross-entropy": "the loss is always computed in fp32: leave the option out",
    "--log-num-zeros-in-grad": "gradients are sharded and gone after the step: leave the option out",
    "--init-method-xavier-uniform": "weights start normal: give --init-method-std",
    "--reset-position-ids": "samples are read across documents: leave the option out",
    "--reset-attention-mask": "samples are read across documents: leave the option out",
    "--eval-only": _LATER,
    "--inference": _LATER,
    "--skip-train-iteration-range": _LATER,
    "--train-range-to-skip": _LATER,
    "--universal-checkpoint": _LATER,
    "--adlr-autoresume": _LATER,
}
