"""From options to a training engine, and one step of it.

    parallel = initialize(options)
    engine = build_engine(options, parallel, Vocabulary.of(tokens, options))
    result = train_step(engine, items, learning_rate=3e-4)

`items` is an iterator of `trainer.model.batch.engine_item` micro-batches of this rank's data-parallel replica; stages
in the middle of a pipeline need none. Per step it must give global batch / (micro-batch x DP) of them, those of data
rank r being samples r*MBS ... (r+1)*MBS-1 of every MBS x DP consecutive ones.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.model.attention import masks_notices
from trainer.model.batch import EngineItem
from trainer.parallel.process_groups import Parallel, initialize
from trainer.recipe.engine_config import engine_config, merged_with_file, stage_notices
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options, OptionsError
from trainer.recipe.vocabulary import Vocabulary

import deepspeed  # isort: skip  # process_groups has imported it the quick way
from deepspeed.runtime.pipe.engine import PipelineEngine  # isort: skip
from deepspeed.runtime.pipe.schedule import ReduceTiedGrads  # isort: skip

from trainer.model.pipeline import GPTPipeline  # isort: skip
from trainer.optim.parameters import build_optimizer  # isort: skip

__all__ = [
    "StepResult",
    "Vocabulary",
    "build_engine",
    "build_model",
    "configuration_notices",
    "evaluate_step",
    "gradient_norm",
    "initialize",
    "masks_notices",
    "parameters_norm",
    "train_step",
]


@dataclass(frozen=True)
class StepResult:
    """What one step measured; the same on every rank. Skipped: fp16 overflowed and no weight changed."""

    loss: float
    gradient_norm: float
    loss_scale: float | None
    skipped: bool


def build_model(options: Options, parallel: Parallel, vocabulary: Vocabulary) -> GPTPipeline:
    """This rank's stage of the model, on its device. Collective."""
    recompute = options.checkpoint_activations or options.deepspeed_activation_checkpointing
    return GPTPipeline(
        ModelShape.of(options, vocabulary),
        parallel,
        options.pp_partition_method,
        blocks_per_checkpoint=options.checkpoint_num_layers if recompute else 0,
        synchronize_replicated=options.sync_tp_duplicated_parameters,
        split_checkpoints=options.partition_activations or options.distribute_checkpointed_activations,
        masks_labels=options.eod_mask_loss,
    )


def build_engine(options: Options, parallel: Parallel, vocabulary: Vocabulary) -> PipelineEngine:
    """DeepSpeed's pipeline engine over the model. Collective. Raises OptionsError for fp16 without a GPU."""
    if options.fp16 and parallel.device.type != "cuda":
        raise OptionsError("--fp16 needs a GPU, and there is none here: use --bf16 or neither")
    model = build_model(options, parallel, vocabulary)
    optimizer, config = build_optimizer(model, options), _configuration(options)
    with contextlib.redirect_stdout(io.StringIO()):  # BF16_Optimizer prints memory, which on a CPU is none
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    if options.fp16 and options.accumulate_allreduce_grads_in_fp32:
        engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, ReduceTiedGrads: _add_up_tied_gradients}
    return engine


def _add_up_tied_gradients(engine: PipelineEngine) -> None:
    """Over the stages that have the word embedding, from where ZeRO accumulates its gradient. Collective.

    DeepSpeed 0.19.8 looks for it in `grad` alone, which is empty where fp16 accumulates in fp32: each stage would train
    a copy of its own.
    """
    for weight, group in engine.module.get_tied_weights_and_groups():
        dist.all_reduce(engine.optimizer.get_param_gradient_attribute(weight), group=group)


def train_step(engine: PipelineEngine, items: Iterator[EngineItem] | None, learning_rate: float) -> StepResult:
    """One optimizer step at `learning_rate` on the next global batch. Collective.

    Micro-batches for a model with dropout carry the index of their first sample. The batch size is the engine's:
    `engine.set_train_batch_size` changes it.
    """
    _expect(engine, training=True)
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate
    engine.module.begin_step()
    skipped_before = engine.skipped_steps
    loss = engine.train_batch(data_iter=_counted(engine, items, engine.micro_batches))
    scale = float(engine.optimizer.cur_scale) if engine.fp16_enabled() else None
    return StepResult(float(loss), gradient_norm(engine), scale, engine.skipped_steps > skipped_before)


def evaluate_step(
    engine: PipelineEngine, items: Iterator[EngineItem] | None, micro_batches: int | None = None
) -> float:
    """Mean loss of one global batch without training on it; of `micro_batches` per replica when given. Collective."""
    _expect(engine, training=False)
    items = _counted(engine, items, micro_batches or engine.micro_batches)
    return float(engine.eval_batch(items, num_micro_batches=micro_batches))


def _counted(
    engine: PipelineEngine, items: Iterator[EngineItem] | None, micro_batches: int
) -> Iterator[EngineItem] | None:
    """The same items. Where some labels do not count, all of a global batch are read ahead to say how many do.

    Otherwise a label in a micro-batch with few of them would weigh more, and the loss depend on micro-batch and DP.
    """
    module = engine.module
    if not module.masks_labels or not module.parallel.is_last_stage or items is None:
        return items
    ahead = list(itertools.islice(items, micro_batches))
    module.counts(math.fsum(float(mask_bs.sum()) for _, (_, mask_bs) in ahead), micro_batches)
    return iter(ahead)


def _expect(engine: PipelineEngine, training: bool) -> None:
    """Have DeepSpeed's stages agree anew on what they send each other, where training sends more than evaluation."""
    if engine.module.has_dropout and engine.module.training != training:
        engine.reset_activation_shape()


def gradient_norm(engine: PipelineEngine) -> float:
    """Norm over all ranks of the last step's gradients before clipping; costs nothing, the step has computed it."""
    norm = engine.get_global_grad_norm()
    return float("nan") if norm is None else float(norm)


def parameters_norm(engine: PipelineEngine, parallel: Parallel) -> float:
    """Norm of all parameters of the model, each counted once. Collective."""
    squares = torch.zeros((), dtype=torch.float64, device=parallel.device)
    for parameter in engine.module.parameters():
        split = getattr(parameter, "tensor_model_parallel", False)
        if (split or parallel.tensor_rank == 0) and not parameter.ds_pipe_replicated:
            squares += parameter.detach().double().square().sum()
    for group in (parallel.tensor_group, parallel.pipeline_group):
        dist.all_reduce(squares, group=group)
    return float(squares.sqrt())


def configuration_notices(options: Options) -> list[str]:
    """What to say of a configuration that is not taken as it stands. Raises OptionsError as `build_engine` does."""
    loaded = _file_of(options)
    _configuration(options)
    return stage_notices(options, loaded)


def _configuration(options: Options) -> dict[str, Any]:
    """The options' configuration, with what a file given with --deepspeed-config adds."""
    loaded = _file_of(options)
    if loaded is None:
        return engine_config(options)
    try:
        return merged_with_file(options, loaded)
    except ValueError as error:
        raise OptionsError(f"--deepspeed-config {options.deepspeed_config}: {error}") from None


def _file_of(options: Options) -> dict[str, Any] | None:
    """What stands in the file given with --deepspeed-config, None without one."""
    if options.deepspeed_config is None:
        return None
    try:
        loaded = json.loads(Path(options.deepspeed_config).read_text())
    except (OSError, ValueError) as error:
        raise OptionsError(f"--deepspeed-config {options.deepspeed_config}: {error}") from None
    if not isinstance(loaded, dict):
        raise OptionsError(f"--deepspeed-config {options.deepspeed_config}: it holds no JSON object")
    return loaded
