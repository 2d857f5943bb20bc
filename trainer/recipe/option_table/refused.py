"""Options of Megatron-LM and BigScience that are refused, with the reason, and those that opsctl sets itself."""

from __future__ import annotations

from trainer.recipe.option_table.row import Option, count, flag, group, number, option, text

_REQUEUED = "opsctl submits a chain of jobs that continue by themselves: remove the option"
_NO_MUP = (
    "this trainer has no muP multipliers: give the --lr and --init-method-std that result at this width, "
    "and remove the option"
)
_OTHER_MODEL = "it belongs to a model that is not a GPT: remove the option"
_OTHER_LOSS = "the loss is the mean over all tokens, without --eod-mask-loss: remove the option"
_OFFLOAD = "states stay on the device and are sharded over DP: remove the option"
_ENGINES_OWN = "DeepSpeed's pipeline engine does this in its own way: remove the option"
_NO_INTERLEAVING = "DeepSpeed's pipeline has no interleaved stages: remove the option"
_NO_EXPERTS = "every block has one MLP, as no router or all-to-all between experts exists: remove the option"
REFUSED: dict[str, str] = {
    "--batch-size": "Megatron has removed it: give --global-batch-size, or --micro-batch-size for that of one replica",
    "--warmup": "Megatron has removed it: give --lr-warmup-samples or --lr-warmup-fraction",
    "--model-parallel-size": "Megatron has removed it: give --tensor-model-parallel-size",
    "--num-layers-per-virtual-pipeline-stage": _NO_INTERLEAVING,
    "--num-virtual-stages-per-pipeline-rank": _NO_INTERLEAVING,
    **dict.fromkeys(("--num-experts", "--expert-model-parallel-size", "--moe-router-topk"), _NO_EXPERTS),
    "--context-parallel-size": "one rank attends to a whole sequence: give --sequence-parallel and --recompute",
    **dict.fromkeys(("--fp8-format", "--fp8"), "products are in bf16, fp16 or fp32: give --bf16"),
    "--pipeline-model-parallel-layout": "give the blocks of each stage with --pp-partition-method 3,4,4,3",
    "--recompute-activations": "give --recompute attention",
    "--recompute-granularity": "give --recompute attention for selective, --recompute block for full",
    "--recompute-method": "give --recompute block with --checkpoint-num-layers",
    "--recompute-num-layers": "give --recompute block with --checkpoint-num-layers",
    "--checkpoint-in-cpu": "recomputation keeps each block's input on the device: remove the option",
    "--cpu-optimizer": "optimizer states stay on the device and are sharded over DP: remove the option",
    "--use-bnb-optimizer": "there is no 8-bit optimizer here: give --optimizer adam",
    "--use-rotary-position-embeddings": "Megatron has removed it: give --position-embedding-type rope",
    "--rotary-interleaved": "rotated pairs are half a head apart, as in Llama: remove the option",
    "--rotary-seq-len-interpolation-factor": "give --use-rope-scaling, or --position-embedding-type yarn",
    "--fp32-residual-connection": "the residual stream has the weights' type: remove the option",
    "--fp16-lm-cross-entropy": "the loss is always computed in fp32: remove the option",
    "--log-num-zeros-in-grad": "gradients are sharded and gone after the step: remove the option",
    "--init-method-xavier-uniform": "weights start normal: give --init-method-std",
    "--window-attn-skip-freq": "all blocks attend alike: remove the option",
    "--inference": "to generate text from a checkpoint: opsctl generate; remove the option",
    "--universal-checkpoint": "every layout loads every other one's checkpoint: remove the option",
    "--adlr-autoresume": _REQUEUED,
    "--adlr-autoresume-interval": _REQUEUED,
    "--mup": _NO_MUP,
    "--mup-input-mult": _NO_MUP,
    "--mup-output-mult": _NO_MUP,
    "--mup-attn-mult": _NO_MUP,
    "--synchronize-each-layer": "nothing waits between recomputed blocks: remove the option",
    "--profile-backward": "nothing is timed between recomputed blocks: remove the option",
    "--contigious-checkpointing": "blocks' inputs are kept one by one: remove the option",
    "--remote-device": _OFFLOAD,
    "--use-pin-memory": _OFFLOAD,
    "--cpu-torch-adam": _OFFLOAD,
    "--scattered-embeddings": "the embedding is split over TP: remove the option",
    "--split-transformers": "blocks are split over TP: give --tensor-model-parallel-size",
    "--memory-centric-tiled-linear": "products are split over TP: give --tensor-model-parallel-size",
    "--tile-factor": "products are split over TP: give --tensor-model-parallel-size",
    "--zero-reduce-scatter": _ENGINES_OWN,
    "--zero-contigious-gradients": _ENGINES_OWN,
    "--use-contiguous-buffers-in-ddp": _ENGINES_OWN,
    "--no-scatter-gather-tensors-in-pipeline": _ENGINES_OWN,
    "--lazy-mpu-init": _ENGINES_OWN,
    "--no-shuffle": "samples are in the order of --seed: remove the option",
    "--reset-progress": "give --finetune: weights are loaded and counters begin at 0",
    "--tensorboard-debug-dir": "give --tensorboard-dir",
    "--loss-on-targets-only": _OTHER_LOSS,
    "--norm-target-loss": _OTHER_LOSS,
    "--reweight-loss-based-on-position-frequency": _OTHER_LOSS,
    "--bitfit": "all parameters are trained: remove the option",
    "--prefixlm": _OTHER_MODEL,
    "--noise-density": _OTHER_MODEL,
    "--mean-noise-span-length": _OTHER_MODEL,
    "--encoder-seq-length": _OTHER_MODEL,
    "--decoder-seq-length": _OTHER_MODEL,
    "--retriever-seq-length": _OTHER_MODEL,
    "--mask-prob": _OTHER_MODEL,
    "--short-seq-prob": _OTHER_MODEL,
    "--bert-no-binary-head": _OTHER_MODEL,
    "--onnx-safe": "opsctl export hf writes models for other programs: remove the option",
    "--sample-rate": "all samples are taken: remove the option",
    "--vocab-extra-ids": "give --pad-vocab-size-to: rows without tokens are there to be used later",
}


SET_BY_OPSCTL: tuple[Option, ...] = group(
    "set by opsctl",
    text("--save", "Folder that checkpoints are written to."),
    text("--load", "Folder that the latest checkpoint is read from."),
    text("--tensorboard-dir", "Folder of the TensorBoard files."),
    text("--log-path", "Folder for a copy of the arguments."),
    text("--codecarbon-dir", "Folder of the energy records: measures with codecarbon, offline."),
    text("--carbon-country", "Country of the electricity, three letters: FRA."),
    text("--carbon-region", "Region of that country, where codecarbon knows its electricity."),
    number("--carbon-intensity-g-per-kwh", "CO2e of the electricity, instead of the country's.", "g/kWh", at_least=0),
    text("--kill-switch-path", "While this file exists: save, leave, exit 0."),
    text("--stop-request-path", "The same for this job alone."),
    text("--save-request-path", "While this file exists: save once and continue."),
    text("--lease-path", "Lease on the training: checked at the start and before a checkpoint is published."),
    count("--lease-number", "Number of this job in the lease."),
    text("--exit-report-path", "File for the reason and the iteration at which the trainer left."),
    number("--exit-duration-in-mins", "Save and leave after this long.", "minutes", at_least=0),
    number("--exit-margin-in-mins", "Longest last save; the distributed timeout by default.", "minutes", at_least=0),
    flag("--deepspeed", "Train through DeepSpeed.", notice="training is always through DeepSpeed"),
    text("--deepspeed-config", "A DeepSpeed JSON file that extends the options' configuration."),
    option("--local-rank", int, None, "Older launchers' local rank.", notice="LOCAL_RANK gives the local rank"),
    table="opsctl",
)
