"""Check that weights, optimizer states and loss are finite before a checkpoint of them becomes the latest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import Tensor

from trainer.formats.checkpoint.partitions import engine_name, saved_parameters
from trainer.loop.resuming import LastLoss
from trainer.recipe.model_shape import ModelShape

OPTION = "--save-non-finite"
_NAMED = 3


@dataclass(frozen=True)
class NotFinite:
    """The reason why a state is not saved."""

    why: str  # a clause
    ends_training: bool  # no later step can repair weights or optimizer states; a loss may be finite again

    def ending(self, iteration: int) -> str:
        """Return the line with which the training ends."""
        return (
            f"the training ends after iteration {iteration}: {self.why}; this state is not saved, and the next start "
            f"resumes from the latest checkpoint; to save it for an examination, add {OPTION}"
        )


class FiniteCheck:
    """The check of all weights and optimizer states of every rank, and of the loss of the last step.

    It costs one pass over this rank's memory without copies and one small all-reduce.
    """

    def __init__(self, engine: PipelineEngine, shape: ModelShape, loss: LastLoss) -> None:
        self._engine, self._loss = engine, loss
        self._full_names = {engine_name(one): one.name for one in saved_parameters(shape)}

    def __call__(self) -> NotFinite | None:
        """Return what is not finite, the same on every rank; None if everything is. Collective."""
        named = list(self._own())
        are_finite = torch.stack([_is_finite(tensor) for _, tensor in named])
        on_any = (~are_finite).any().to(torch.int32)
        dist.all_reduce(on_any, op=dist.ReduceOp.MAX)
        if on_any:
            own = [name for (name, _), is_finite in zip(named, are_finite.tolist(), strict=True) if not is_finite]
            of_ranks: list[list[str]] = [[] for _ in range(dist.get_world_size())]
            dist.all_gather_object(of_ranks, own)
            return NotFinite(_words(of_ranks), ends_training=True)
        if not self._loss.is_finite:
            return NotFinite("the loss of the last step is not finite (NaN or infinite)", ends_training=False)
        return None

    def _own(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self._engine.module.named_parameters():
            yield self._full_names.get(name, name), parameter.detach()
        base = self._engine.optimizer.optimizer
        for group in base.param_groups:
            for flat in group["params"]:
                yield "master weights", flat.detach()
                for name, state in base.state[flat].items():
                    if torch.is_tensor(state) and state.shape == flat.shape:
                        yield f"the optimizer's {name}", state


def _is_finite(tensor: Tensor) -> Tensor:
    """Return a flag that is true if all values are finite. `aminmax` needs no copy and passes NaN on."""
    if not tensor.numel():
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    return torch.stack(torch.aminmax(tensor)).isfinite().all()


def _words(of_ranks: list[list[str]]) -> str:
    ranks = [rank for rank, names in enumerate(of_ranks) if names]
    names = list(dict.fromkeys(name for one in of_ranks for name in one))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    which = f"rank {ranks[0]} holds" if len(ranks) == 1 else f"{len(ranks)} ranks, the first is {ranks[0]}, hold"
    return (
        f"{which} weights or optimizer states that are not finite (NaN or infinite): {', '.join(names[:_NAMED])}{more}"
    )
