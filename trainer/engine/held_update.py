"""Looking at a step between its gradients and its update: what becomes of it is decided before anything changes.

DeepSpeed has one way to drop a step's gradients cleanly, the one it takes where they overflow; here it is sent that way
when it is told so, without its loss scale hearing of an overflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import OptimizerStep

from trainer.optim.step_numbers import StepNumbers
from trainer.recipe.spike_guard import Verdict

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
    before = engine._INSTRUCTION_MAP

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

    engine._INSTRUCTION_MAP = {**before, OptimizerStep: step}
    try:
        yield
    finally:
        engine._INSTRUCTION_MAP = before


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
