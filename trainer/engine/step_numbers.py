"""The numbers of a step that all ranks need: its loss, its gradients' norm, and their votes.

One small all-reduce over all ranks carries them, right before the update, and the host waits once for the device to
read them. DeepSpeed 0.19.8 would sum the norm twice for each group of parameters, send the loss through the replicas
and then along the pipeline, and read several of these on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime import bf16_optimizer
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from trainer.kernels.adam import AdamKernels
from trainer.parallel.process_groups import Parallel

#: What this rank says in a step; the same number of values on every rank. Asked right before they are summed.
Votes = Callable[[], Sequence[float]]


class StepNumbers:
    """The numbers of the current step; the same on every rank, except `replica_loss`."""

    def __init__(self, engine: PipelineEngine, parallel: Parallel) -> None:
        self._engine, self._parallel = engine, parallel
        self._optimizer: Any = engine.optimizer
        self._is_known = False
        self._votes: Votes = tuple
        self._replica_losses: list[float] = []
        self._norm = math.nan
        self._counted: tuple[float, ...] = ()

    def begin(self, votes: Votes) -> None:
        """Before a step: nothing is known of it."""
        self._is_known, self._votes = False, votes

    @property
    def loss(self) -> float:
        """Mean over the global batch. Collective, like all of these, if it is the first to be asked in its step."""
        self._know()
        return math.fsum(self._replica_losses) / len(self._replica_losses)

    @property
    def replica_loss(self) -> float:
        """Mean over what this rank's data-parallel replica read: the same on all ranks of its pipeline."""
        self._know()
        return self._replica_losses[self._parallel.data_rank]

    @property
    def norm(self) -> float:
        """The norm of the gradients before clipping, with fp16's loss scale; infinite if it is not a number."""
        self._know()
        return self._norm

    @property
    def votes(self) -> tuple[float, ...]:
        """Each vote's sum over all ranks."""
        self._know()
        return self._counted

    def _know(self) -> None:
        if self._is_known:
            return
        votes = self._votes()
        said = torch.tensor([*votes], dtype=torch.float64)
        losses = torch.zeros(self._parallel.data_size, dtype=torch.float64, device=self._engine.device)
        if self._parallel.is_last_stage and self._parallel.tensor_rank == 0:
            losses[self._parallel.data_rank] = self._engine._scale_loss_by_gas(self._engine.total_loss)
        squares_of_all = _squares(self._own_gradients(), losses.device, self._parallel.operations.adam)
        summed = torch.cat([squares_of_all, losses, said.to(losses.device)])
        dist.all_reduce(summed)
        squares, *values = summed.tolist()
        self._norm = math.sqrt(squares) if math.isfinite(squares) else math.inf
        self._replica_losses = values[: len(losses)]
        self._counted = tuple(values[len(losses) :])
        self._is_known = True

    def _own_gradients(self) -> list[Tensor]:
        """Those that this rank alone brings into the norm."""
        if self._engine.bfloat16_enabled():  # reduced, whole on every replica
            counts = self._parallel.data_rank == 0
            return type(self._optimizer).get_grads_for_norm(self._optimizer)[0] if counts else []
        optimizer, found = self._optimizer, []
        for group, parameters in enumerate(optimizer.params_in_partition):
            gradients = [one for one in optimizer.averaged_gradients[group] or () if not _is_padding(one)]
            for gradient, parameter in zip(gradients, parameters, strict=False):
                split = getattr(parameter, "tensor_model_parallel", False)
                if (split or self._parallel.tensor_rank == 0) and not parameter.ds_pipe_replicated:
                    found.append(gradient)
        return found


def measure_once(engine: PipelineEngine, parallel: Parallel) -> StepNumbers:
    """Have the engine and its optimizer take a step's loss and norm from the numbers that this returns."""
    numbers = StepNumbers(engine, parallel)
    optimizer: Any = engine.optimizer

    def norm() -> Tensor:
        return torch.tensor(numbers.norm, dtype=torch.float32)  # on the host, where it is looked at

    def gradients_for_norm(for_clipping: bool = False) -> Any:
        if for_clipping:
            return type(optimizer).get_grads_for_norm(optimizer, for_clipping=True)
        return _Measured(norm()), {}

    if engine.bfloat16_enabled():
        optimizer.get_grads_for_norm = gradients_for_norm
        bf16_optimizer.get_global_norm_of_tensors = _norm_of
    else:
        optimizer.scaled_global_norm = norm
    engine._aggregate_total_loss = lambda: torch.tensor(numbers.loss, dtype=torch.float32)
    return numbers


class _Measured(list[Tensor]):
    """Stands for gradients whose norm is known."""

    def __init__(self, norm: Tensor) -> None:
        super().__init__([norm])
        self.norm = norm


_norm_by_deepspeed = bf16_optimizer.get_global_norm_of_tensors


def _norm_of(input_tensors: Any, **settings: Any) -> Tensor:
    if isinstance(input_tensors, _Measured):
        return input_tensors.norm
    norm: Tensor = _norm_by_deepspeed(input_tensors, **settings)
    return norm


def _squares(gradients: list[Tensor], device: torch.device, kernels: AdamKernels | None) -> Tensor:
    """Sum of all their squares, of one element, in fp64; no finite number where one of them holds none."""
    if not gradients:
        return torch.zeros(1, dtype=torch.float64, device=device)
    if kernels is not None:
        return kernels.squares([one.detach().contiguous() for one in gradients])
    norms = [torch.linalg.vector_norm(one.detach(), dtype=torch.float64) for one in gradients]
    return torch.stack(norms).square().sum().reshape(1)


def _is_padding(gradient: Tensor) -> bool:
    return bool(getattr(gradient, "_zero_padding", False))
