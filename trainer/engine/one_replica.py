"""Gradients of a single data-parallel replica: there is nobody to average them with, so they stay where they are.

DeepSpeed 0.19.8's ZeRO copies each of them into a buffer for the exchange and out of it into another, both made anew in
every step: on a CPU that is half as many bytes again as the weights' products read, most of them in fresh pages.
"""

from __future__ import annotations

from typing import Any

from deepspeed.runtime.pipe.engine import PipelineEngine


def leave_gradients(engine: PipelineEngine) -> None:
    """Have the engine's optimizer, where it is ZeRO's, exchange nothing. Only for a replica that is the only one."""
    optimizer: Any = engine.optimizer
    if not hasattr(optimizer, "buffered_reduce_fallback"):
        return
    optimizer.contiguous_gradients = False  # the buffers; the other way is the one below
    optimizer.buffered_reduce_fallback = _exchange_nothing


def _exchange_nothing(*_: Any, **__: Any) -> None:
    """Stands for the average over replicas."""
