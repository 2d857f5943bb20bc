"""DeepSpeed's update in one pass: clipping and unscaling in what Adam reads, the 16-bit weight in what it writes.

DeepSpeed 0.19.8 multiplies all gradients before the update, and under ZeRO copies them into one tensor and that into
fp32 before; then it rounds all weights. Here Adam reads each gradient where it lies, times one number, and writes both
weights. What is kept, when an update is dropped and what becomes of the loss scale are DeepSpeed's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import deepspeed.comm as deepspeed_comm
import torch
from deepspeed.runtime import bf16_optimizer
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import OptimizerStep
from deepspeed.runtime.utils import all_gather_dp_groups, is_invalid_grad_norm
from torch import Tensor, nn

from trainer.engine.members import replace_instructions
from trainer.engine.step_numbers import StepNumbers
from trainer.optim.fused_adam import FusedAdam
from trainer.recipe.spike_guard import Verdict


def fold_step(engine: PipelineEngine) -> None:
    """Have the engine update in one pass where its optimizer is Adam by kernels; else nothing changes."""
    optimizer: Any = engine.optimizer
    adam = optimizer.optimizer
    if not isinstance(adam, FusedAdam):
        return
    step = _bf16_step if engine.bfloat16_enabled() else _zero_step
    optimizer.step = functools.partial(step, optimizer, adam)


@torch.no_grad()
def _bf16_step(optimizer: Any, adam: FusedAdam) -> None:
    """BF16_Optimizer's, whose fp32 gradients are whole on every replica, and a part of them this one's."""
    gradients, _ = optimizer.get_grads_for_norm()
    norm = bf16_optimizer.get_global_norm_of_tensors(
        input_tensors=gradients, mpu=optimizer.mpu, norm_type=optimizer.norm_type
    )
    optimizer.overflow = is_invalid_grad_norm(norm)
    if optimizer.overflow:
        optimizer._global_grad_norm = math.inf
        optimizer.clear_hp_grads()
        optimizer.clear_lp_grads()
        return
    optimizer._global_grad_norm = norm
    scale = _clipping(float(norm), optimizer.clip_grad)
    for number, group in enumerate(adam.param_groups):
        parameter, gradient = group["params"][0], optimizer.fp32_groups_gradient_flat_partition[number]
        own = optimizer.bf16_partitioned_groups[number][_own_part(optimizer, number)]
        adam.update(group, parameter, [gradient], scale, own)
    optimizer._lazy_init_hp_params_optimizer_state()
    _gather(optimizer, optimizer.bf16_groups_flat, optimizer.bf16_partitioned_groups)
    optimizer.clear_hp_grads()


@torch.no_grad()
def _zero_step(optimizer: Any, adam: FusedAdam) -> None:
    """ZeRO stage 1's, of fp32 and fp16.

    An overflow is known from the norm, which is none then, and gradients are divided by the scale that they were made
    with; DeepSpeed 0.19.8 takes the next step's, half or twice of it where that changes.
    """
    optimizer.micro_step_id = -1
    norm, scale = optimizer.scaled_global_norm(), float(optimizer.loss_scale)
    optimizer.overflow = is_invalid_grad_norm(norm)
    optimizer._update_scale(optimizer.overflow)
    if optimizer.overflow:
        optimizer._global_grad_norm = math.inf
        optimizer.zero_grad(set_to_none=True)
        for number in optimizer.averaged_gradients:
            _let_go(optimizer, number)
        return
    optimizer._global_grad_norm = norm / scale
    factor = _clipping(float(norm) / scale, optimizer.clip_grad) / scale
    for number, group in enumerate(adam.param_groups):
        optimizer.free_grad_in_param_list(optimizer.params_not_in_partition[number])
        own = optimizer.parallel_partitioned_bit16_groups[number][_own_part(optimizer, number)]
        parameter, gradients = group["params"][0], optimizer.averaged_gradients[number]
        is_half = own.dtype != parameter.dtype
        adam.update(group, parameter, gradients, factor, own if is_half else None)
        if not is_half:
            own.copy_(parameter)
        optimizer.free_grad_in_param_list(optimizer.params_in_partition[number])
        _let_go(optimizer, number)
    optimizer._lazy_init_hp_params_optimizer_state()
    _gather(optimizer, optimizer.bit16_groups_flat, optimizer.parallel_partitioned_bit16_groups)
    for number in range(len(optimizer.bit16_groups)):
        optimizer._update_model_bit16_weights(number)


def _clipping(norm: float, most: float) -> float:
    """Return the factor that reduces gradients of this norm to `most`; 1 if they are below it, or if it is 0."""
    return 1.0 if most <= 0 else min(1.0, most / (norm + 1e-6))


def _own_part(optimizer: Any, group: int) -> int:
    return int(deepspeed_comm.get_rank(group=optimizer.real_dp_process_group[group]))


def _let_go(optimizer: Any, group: int) -> None:
    optimizer.averaged_gradients[group] = None
    optimizer.all_grad_tensors[group] = None


def _gather(optimizer: Any, whole: list[Tensor], parts: list[list[Tensor]]) -> None:
    """Gather the replicas' updates on all of them. Collective."""
    all_gather_dp_groups(
        groups_flat=whole,
        partitioned_param_groups=parts,
        dp_process_group=optimizer.real_dp_process_group,
        start_alignment_factor=optimizer.nccl_start_alignment_factor,
        allgather_bucket_size=optimizer.allgather_bucket_size,
    )


class EngineAccumulation:
    """The `trainer.parallel.cross_entropy.Accumulation` of an engine's last stage and its output layer's weight.

    On that stage a micro-batch's backward pass follows its forward pass at once. All other gradients of the weight, and
    a step's end or its being dropped, find in these sums what autograd would have left there.
    """

    def __init__(self, engine: PipelineEngine, weight: nn.Parameter) -> None:
        self._engine, self._weight = engine, weight
        self._optimizer: Any = engine.optimizer
        self._of_bf16 = self._place_in_groups() if isinstance(engine.optimizer, BF16_Optimizer) else None

    def multiplier(self) -> float:
        """Loss scale, where there is one, over the micro-batches of a step; rounded as autograd has it, in fp32."""
        scale = float(self._optimizer.loss_scaler.loss_scale) if self._engine.fp16_enabled() else 1.0
        return float(torch.tensor(scale) / self._engine.gradient_accumulation_steps())

    def weight_sum(self) -> tuple[Tensor, bool] | None:
        """As `Accumulation` has it; None where fp16 gradients are added up in fp16."""
        if self._of_bf16 is not None:
            return self._in_bf16_optimizer(*self._of_bf16)
        if self._optimizer.use_grad_accum_attribute:
            name = "grad_accum"
        elif self._weight.dtype == torch.float32:
            name = "grad"
        else:
            return None
        found = getattr(self._weight, name)
        if found is None:
            found = torch.empty_like(self._weight, dtype=torch.float32, memory_format=torch.contiguous_format)
            setattr(self._weight, name, found)
            return found.detach(), True
        return found.detach(), False

    def _in_bf16_optimizer(self, group: int, index: int) -> tuple[Tensor, bool]:
        """Return the gradient sum. The optimizer clears its sums after each step, and uses those marked as present."""
        found = self._optimizer.fp32_groups_gradients[group][index]
        self._optimizer.fp32_groups_has_gradients[group][index] = True
        self._weight._hp_grad = found  # type: ignore[attr-defined]
        return found.view(self._weight.shape), False

    def _place_in_groups(self) -> tuple[int, int]:
        for group, weights in enumerate(self._optimizer.bf16_groups):
            for index, weight in enumerate(weights):
                if weight is self._weight:
                    return group, index
        raise ValueError("the optimizer does not train the output layer's weight")


#: (loss, gradient norm) -> what to do with the update; both are the same on every rank, and so must be the answer.
Decides = Callable[[float, float], Verdict]


@contextmanager
def held_update(engine: PipelineEngine, numbers: StepNumbers, decides: Decides | None) -> Iterator[None]:
    """While it lasts, each step asks before its update. With None none does.

    A skipped step counts as one; one that is to be run again does not. A norm that is no finite number beside a loss
    that is one, as where fp16 overflows, is left to DeepSpeed, which makes no update of it and lowers the loss scale.
    """
    if decides is None:
        yield
        return

    def step(own: PipelineEngine, lr_kwargs: Any = None) -> None:
        norm = _norm_after_an_update(own, numbers)
        is_left_alone = math.isfinite(numbers.loss) and not math.isfinite(norm)
        verdict = Verdict.UPDATE if is_left_alone else decides(numbers.loss, norm)
        if verdict == Verdict.UPDATE:
            own._exec_optimizer_step(lr_kwargs)
            return
        counted = own.global_steps, own.global_samples, own.skipped_steps
        with _as_if_overflown(own):
            own._exec_optimizer_step(lr_kwargs)
        own._global_grad_norm = norm
        if verdict == Verdict.RERUN:
            own.global_steps, own.global_samples, own.skipped_steps = counted

    before = replace_instructions(engine, {OptimizerStep: step})
    try:
        yield
    finally:
        replace_instructions(engine, before)


def _norm_after_an_update(engine: PipelineEngine, numbers: StepNumbers) -> float:
    """As DeepSpeed has it then, in fp32, so that what was decided by and what two runs gave are the same number."""
    norm = torch.tensor(numbers.norm, dtype=torch.float32)
    return float(norm if engine.bfloat16_enabled() else norm / float(engine.optimizer.loss_scale))


@contextmanager
def _as_if_overflown(engine: PipelineEngine) -> Iterator[None]:
    optimizer: Any = engine.optimizer
    infinite = torch.full((), math.inf, device=engine.device)
    answers: dict[str, Callable[..., Any]] = (
        {"get_grads_for_norm": lambda: ([infinite], {})}
        if engine.bfloat16_enabled()
        else {"scaled_global_norm": lambda: infinite, "_update_scale": lambda _overflow: None}
    )
    usual = {name: getattr(optimizer, name) for name in answers}
    vars(optimizer).update(answers)
    try:
        yield
    finally:
        vars(optimizer).update(usual)
