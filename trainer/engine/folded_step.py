"""DeepSpeed's update in one pass: clipping and unscaling in what Adam reads, the 16-bit weight in what it writes.

DeepSpeed 0.19.8 multiplies all gradients before the update, and under ZeRO copies them into one tensor and that into
fp32 before; then it rounds all weights. Here Adam reads each gradient where it lies, times one number, and writes both
weights. What is kept, when an update is dropped and what becomes of the loss scale are DeepSpeed's.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import deepspeed.comm as deepspeed_comm
import torch
from deepspeed.runtime import bf16_optimizer
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.utils import all_gather_dp_groups, is_invalid_grad_norm
from torch import Tensor

from trainer.optim.fused_adam import FusedAdam


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
    """What brings gradients of this norm down to `most`; 1 where they are below it, or where that is 0."""
    return 1.0 if most <= 0 else min(1.0, most / (norm + 1e-6))


def _own_part(optimizer: Any, group: int) -> int:
    return int(deepspeed_comm.get_rank(group=optimizer.real_dp_process_group[group]))


def _let_go(optimizer: Any, group: int) -> None:
    optimizer.averaged_gradients[group] = None
    optimizer.all_grad_tensors[group] = None


def _gather(optimizer: Any, whole: list[Tensor], parts: list[list[Tensor]]) -> None:
    """What the replicas have updated, on all of them. Collective."""
    all_gather_dp_groups(
        groups_flat=whole,
        partitioned_param_groups=parts,
        dp_process_group=optimizer.real_dp_process_group,
        start_alignment_factor=optimizer.nccl_start_alignment_factor,
        allgather_bucket_size=optimizer.allgather_bucket_size,
    )
