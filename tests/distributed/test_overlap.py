"""Communication between ranks while they compute."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.tiny_training import step_items, tiny_engine


def waits_of_a_step() -> tuple[int, int]:
    """Tensors that this stage sends in its second step: waiting for the other one, and without."""
    import torch.distributed as dist

    from trainer.engine.build import train_step

    options, parallel, engine = tiny_engine(pipeline_model_parallel_size=2)
    train_step(engine, iter(step_items(options, parallel, 0)), options.lr)
    counted = {"send": 0, "isend": 0}
    for name in counted:
        _count(dist, name, counted)
    train_step(engine, iter(step_items(options, parallel, 1)), options.lr)
    return counted["send"], counted["isend"]


def _count(dist: Any, name: str, counted: dict[str, int]) -> None:
    real = getattr(dist, name)

    def counting(*args: Any, **keywords: Any) -> Any:
        counted[name] += 1
        return real(*args, **keywords)

    setattr(dist, name, counting)


def test_a_stage_computes_on_while_what_it_sends_is_on_its_way(pool: Pool) -> None:
    micro_batches = 4
    assert pool.run(2, waits_of_a_step) == [(0, micro_batches), (0, micro_batches)]


def order_of_a_backward_pass(changes: dict[str, Any]) -> list[str]:
    """Return the backward operations of the last block's MLP, in order."""
    import torch

    from trainer.parallel import products as module

    dist: Any = torch.distributed

    options, _, engine = tiny_engine(**changes, tensor_model_parallel_size=2)
    mlp = engine.module.forward_funcs[3].mlp
    happened = []

    class Noted:
        def __init__(self, work: Any) -> None:
            self.work = work

        def wait(self) -> None:
            happened.append("summed")
            self.work.wait()

    def all_reduce(tensor: Any, group: Any = None, async_op: bool = False) -> Any:
        happened.append("sum" if async_op else "sum at once")
        work = real_all_reduce(tensor, group=group, async_op=async_op)
        return Noted(work) if async_op else work

    def matmul(left: Any, right: Any) -> Any:
        happened.append("product")
        return real_matmul(left, right)

    x = torch.ones(2, options.seq_length, options.hidden_size, requires_grad=True)
    y = mlp(x).sum()
    products: Any = module
    real_all_reduce, real_matmul = dist.all_reduce, products.matmul
    dist.all_reduce, products.matmul = all_reduce, matmul
    y.backward()
    return happened


@pytest.mark.parametrize(("changes", "layers"), [({}, 1), ({"swiglu": True}, 2)])
def test_a_sum_over_tensor_ranks_is_under_way_while_the_weights_gradients_are_computed(
    pool: Pool, changes: dict[str, Any], layers: int
) -> None:
    happened = pool.run(2, order_of_a_backward_pass, changes)
    assert happened == [["product"] * layers + ["sum"] + ["product"] * layers + ["summed"]] * 2
