"""From options to a training engine, and one step of it.

    parallel = initialize(options)
    engine = build_engine(options, parallel, Vocabulary.of(tokens, options))
    result = train_step(engine, items, learning_rate=3e-4)

`items` is an iterator of `trainer.model.pipeline.engine_item` micro-batches of this rank's data-parallel replica. A
stage in the middle of a pipeline needs none. Per step it must give global batch / (micro-batch x DP) of them, those of
data rank r being samples r*MBS ... (r+1)*MBS-1 of every MBS x DP consecutive ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import ReduceTiedGrads, SendActivation, SendGrad
from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS
from torch import Tensor

from trainer.engine.folded_step import Decides, EngineAccumulation, fold_step, held_update
from trainer.engine.members import replace_instructions
from trainer.engine.ranks import initialize
from trainer.engine.step_numbers import StepNumbers, Votes, measure_once
from trainer.model.attention import masks_notices
from trainer.model.pipeline import EngineItem, GPTPipeline
from trainer.optim.fused_adam import build_optimizer
from trainer.parallel.process_groups import Parallel
from trainer.recipe.engine_config import engine_config, merged_with_file, stage_notices
from trainer.recipe.model_options import ATTENTION, BLOCK, Vocabulary, recomputed
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options, OptionsError


def leave_gradients(engine: PipelineEngine) -> None:
    """Have the engine's optimizer, where it is ZeRO's, exchange nothing. Only for a replica that is the only one."""
    optimizer: Any = engine.optimizer
    if not hasattr(optimizer, "buffered_reduce_fallback"):
        return
    optimizer.contiguous_gradients = False  # the buffers; the other way is the one below
    optimizer.buffered_reduce_fallback = _exchange_nothing


def _exchange_nothing(*_: Any, **__: Any) -> None:
    """Stands for the average over replicas."""


def send_meanwhile(engine: PipelineEngine) -> None:
    """Have the engine's stage go on while what it sends is on its way."""
    forth, back = _Sends(), _Sends()

    def send_activations(stage: PipelineEngine, buffer_id: int) -> None:
        outputs = stage.pipe_buffers["outputs"][buffer_id]
        if stage.first_output_send:
            stage.first_output_send = False
            stage._send_tensor_meta(outputs, stage.next_stage)
        forth.start(list(_tensors(outputs)), stage.grid.stage_to_global(stage.next_stage))

    def send_gradients(stage: PipelineEngine, buffer_id: int) -> None:
        inputs = stage.pipe_buffers["inputs"][buffer_id]
        gradients = [one.grad for one in _tensors(inputs) if one.grad is not None]
        back.start(gradients, stage.grid.stage_to_global(stage.prev_stage))
        stage.pipe_buffers["inputs"][buffer_id] = None

    replace_instructions(engine, {SendActivation: send_activations, SendGrad: send_gradients})


def _tensors(passed_on: Any) -> Iterator[Tensor]:
    yield from passed_on if isinstance(passed_on, tuple) else (passed_on,)


class _Sends:
    """One micro-batch on its way in one direction: it is held here until it has arrived, when the next one starts."""

    def __init__(self) -> None:
        self._under_way: list[tuple[Any, Tensor]] = []

    def start(self, tensors: list[Tensor], rank: int) -> None:
        for work, _ in self._under_way:
            work.wait()
        self._under_way = [(dist.isend(one, rank), one) for one in tensors]


#: Also for importers of this module.
__all__ = ["Decides", "PipelineEngine", "Vocabulary", "initialize", "masks_notices"]


@dataclass(frozen=True)
class StepResult:
    """The measurements of one step; the same on every rank. Skipped: no weight changed, by an overflow or a decision.

    votes: the sum over all ranks of each value that they contributed.
    """

    loss: float
    gradient_norm: float
    loss_scale: float | None
    skipped: bool
    votes: tuple[float, ...] = ()


def build_model(
    options: Options, parallel: Parallel, vocabulary: Vocabulary, draws_weights: bool = True
) -> GPTPipeline:
    """Build this rank's stage of the model on its device. Collective. Without `draws_weights` matrices are 0."""
    shape = ModelShape.of(options, vocabulary)
    recompute = recomputed(options)
    return GPTPipeline(
        shape if draws_weights else dataclasses.replace(shape, init_std=0.0),
        parallel,
        options.pp_partition_method,
        blocks_per_checkpoint=options.checkpoint_num_layers if recompute == BLOCK else 0,
        recompute_attention=recompute == ATTENTION,
        synchronize_replicated=options.sync_tp_duplicated_parameters,
        split_checkpoints=options.partition_activations or options.distribute_checkpointed_activations,
        masks_labels=options.eod_mask_loss,
        z_loss=options.z_loss_coeff,
    )


def build_engine(
    options: Options, parallel: Parallel, vocabulary: Vocabulary, draws_weights: bool = True
) -> PipelineEngine:
    """DeepSpeed's pipeline engine over the model. Collective. Raises OptionsError for fp16 without a GPU.

    draws_weights: whether the training begins with these; a checkpoint's are read over them all.
    """
    if options.fp16 and parallel.device.type != "cuda":
        raise OptionsError("--fp16 needs a GPU, and this node has none: use --bf16 or neither")
    model = build_model(options, parallel, vocabulary, draws_weights)
    optimizer, config = build_optimizer(model, options, parallel.operations.adam), _configuration(options)
    if type(optimizer) not in ZERO_SUPPORTED_OPTIMIZERS:  # it warns of every class that it does not list
        ZERO_SUPPORTED_OPTIMIZERS.append(type(optimizer))
    with contextlib.redirect_stdout(io.StringIO()):  # BF16_Optimizer prints memory, which on a CPU is none
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    send_meanwhile(engine)
    if parallel.data_size == 1:
        leave_gradients(engine)
    engine.numbers = measure_once(engine, parallel)
    if parallel.is_last_stage:
        model.loss_fn.accumulation = EngineAccumulation(engine, model.output_weight)
    fold_step(engine)
    if options.fp16 and options.accumulate_allreduce_grads_in_fp32:
        replace_instructions(engine, {ReduceTiedGrads: _add_up_tied_gradients})
    return engine


def _add_up_tied_gradients(engine: PipelineEngine) -> None:
    """Over the stages that have the word embedding, from where ZeRO accumulates its gradient. Collective.

    DeepSpeed 0.19.8 looks for it in `grad` alone, which is empty where fp16 accumulates in fp32: each stage would train
    a copy of its own.
    """
    for weight, group in engine.module.get_tied_weights_and_groups():
        dist.all_reduce(engine.optimizer.get_param_gradient_attribute(weight), group=group)


def train_step(
    engine: PipelineEngine,
    items: Iterator[EngineItem] | None,
    learning_rate: float,
    decides: Decides | None = None,
    votes: Votes = tuple,
    consumed_samples: int | None = None,
) -> StepResult:
    """One optimizer step at `learning_rate` on the next global batch. Collective.

    decides: asked before the update, on every rank, what to do with it; on every rank alike. votes: asked right before
    that, on every rank for its own; the step's one small collective carries them.
    Micro-batches for a model with dropout carry the index of their first sample. It is read off the device, one by one,
    unless `consumed_samples` says how many came before this global batch. The batch size is the engine's:
    `engine.set_train_batch_size` changes it.
    """
    _expect(engine, training=True)
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate
    engine.module.begin_step()
    engine.module.places = None if consumed_samples is None else _places(engine, consumed_samples)
    skipped_before = engine.skipped_steps
    numbers: StepNumbers = engine.numbers
    numbers.begin(votes)
    with held_update(engine, numbers, decides):
        engine.train_batch(data_iter=_counted(engine, items, engine.micro_batches))
    scale = float(engine.optimizer.cur_scale) if engine.fp16_enabled() else None
    skipped = engine.skipped_steps > skipped_before
    return StepResult(numbers.loss, gradient_norm(engine), scale, skipped, numbers.votes)


def _places(engine: PipelineEngine, consumed_samples: int) -> Iterator[int] | None:
    """Return the index of the first sample of each of this replica's micro-batches; None if it is not needed."""
    module = engine.module
    if not module.has_dropout:
        return None
    size, parallel = engine.train_micro_batch_size_per_gpu(), module.parallel
    return itertools.count(consumed_samples + parallel.data_rank * size, size * parallel.data_size)


def count_skipped_step(engine: PipelineEngine, batch_size: int) -> None:
    """Count a step on `batch_size` samples that is not taken, as the engine counts one that it skipped."""
    engine.global_steps += 1
    engine.global_samples += batch_size
    engine.skipped_steps += 1


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
    """Return the same items. If some labels do not count, read a global batch ahead to know their number.

    Otherwise a label in a micro-batch with few of them would weigh more, and the loss would depend on micro-batch and
    DP.
    """
    module = engine.module
    if not module.masks_labels or not module.parallel.is_last_stage or items is None:
        return items
    ahead = list(itertools.islice(items, micro_batches))
    module.counts(math.fsum(float(mask_bs.sum()) for _, (_, mask_bs) in ahead), micro_batches)
    return iter(ahead)


def _expect(engine: PipelineEngine, training: bool) -> None:
    """Let DeepSpeed's stages agree again on the shapes they send, if training sends more than evaluation."""
    if engine.module.has_dropout and engine.module.training != training:
        engine.reset_activation_shape()


def gradient_norm(engine: PipelineEngine) -> float:
    """Norm over all ranks of the last step's gradients before clipping; costs nothing, the step has computed it."""
    norm = engine.get_global_grad_norm()
    return float("nan") if norm is None else float(norm)


def replica_loss(engine: PipelineEngine) -> float:
    """Return the last step's loss on this rank's data-parallel replica alone: the same on all ranks of its pipeline."""
    numbers: StepNumbers = engine.numbers
    return numbers.replica_loss


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
    """Return notices about a configuration that is not used unchanged. Raises OptionsError as `build_engine` does."""
    loaded = _file_of(options)
    _configuration(options)
    return stage_notices(options, loaded)


def _configuration(options: Options) -> dict[str, Any]:
    """Return the options' configuration, with the additions of a file given with --deepspeed-config."""
    loaded = _file_of(options)
    if loaded is None:
        return engine_config(options)
    try:
        return merged_with_file(options, loaded)
    except ValueError as error:
        raise OptionsError(f"--deepspeed-config {options.deepspeed_config}: {error}") from None


def _file_of(options: Options) -> dict[str, Any] | None:
    """Return the content of the file given with --deepspeed-config, None without one."""
    if options.deepspeed_config is None:
        return None
    try:
        loaded = json.loads(Path(options.deepspeed_config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionsError(f"--deepspeed-config {options.deepspeed_config}: {error}") from None
    if not isinstance(loaded, dict):
        raise OptionsError(f"--deepspeed-config {options.deepspeed_config}: it holds no JSON object")
    return loaded
