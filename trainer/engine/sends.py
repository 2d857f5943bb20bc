"""What pipeline stages send each other, on its way while the sender computes on.

DeepSpeed 0.19 waits with each tensor until the other stage asks for it. With gloo that is as long as the other stage
computes; NCCL takes it in the order of its stream either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.pipe.schedule import SendActivation, SendGrad
from torch import Tensor


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

    engine._INSTRUCTION_MAP = {**engine._INSTRUCTION_MAP, SendActivation: send_activations, SendGrad: send_gradients}


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
