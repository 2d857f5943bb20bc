"""A training step in bf16 beside one in fp32 on a CPU, and the update beside what the machine copies.

The shape of `benchmarks.trainer_throughput` with ALiBi, one process, two threads; both precisions take turns step by
step, and the ratio is a median over turns. A CPU without bfloat16 instructions computes the products in fp32, block by
block; one that has them by torch, as it is.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import trainer_throughput as throughput

GOAL_WITHOUT, GOAL_WITH = 0.8, 1.6
_ELEMENTS = 16_000_000  # of the update: far more than a cache holds
_UPDATE_BYTES = 4 + 3 * 8 + 2  # gradient read; weight and moments read and written; half written
_ALIBI = {"position_embedding_type": "alibi", "embed_layernorm": True}


def main(rounds: int = 16) -> dict[str, Any]:
    """Measure, print, and return the numbers by name for a JSON file."""
    os.environ.setdefault("OMP_NUM_THREADS", str(throughput.THREADS))
    from trainer.core.preload import import_engine

    import_engine()
    import torch

    from trainer.parallel.products import cpu_multiplies_bf16

    torch.set_num_threads(throughput.THREADS)
    steps = {name: throughput._engine_step({**_ALIBI, "bf16": name == "bf16"}) for name in ("fp32", "bf16")}
    for step in steps.values():
        step()
        step()
    rates: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            rates[name].append(throughput._tokens_per_second(step))
    ratio = statistics.median(bf16 / fp32 for fp32, bf16 in zip(rates["fp32"], rates["bf16"], strict=True))
    of_fastest = max(rates["bf16"]) / max(rates["fp32"])
    has, goal = ("with", GOAL_WITH) if cpu_multiplies_bf16() else ("without", GOAL_WITHOUT)
    for name, values in rates.items():
        print(f"{name}: {statistics.median(values):.0f} tokens/s, {max(values):.0f} at most")
    print(
        f"bf16 / fp32 {ratio:.2f}x on a CPU {has} bfloat16 instructions (goal: {goal:.2f}x), fastest {of_fastest:.2f}x"
    )
    return {"ratio": ratio, "ratio_of_fastest": of_fastest, "has_instructions": has == "with", **_update()}


def _update() -> dict[str, float]:
    """Measure the built kernels: bytes per second of Adam with a half next to a plain copy's, and torch's time."""
    import torch

    from trainer.kernels.adam import AdamBuffers, AdamSettings
    from trainer.kernels.cpp import CppAdam
    from trainer.kernels.native.libraries import NotBuilt, operations

    library = operations()
    if isinstance(library, NotBuilt):
        print(f"Adam: {library.why}")
        return {}
    kernels = CppAdam(library)
    weight, gradient, first, second = (torch.rand(_ELEMENTS) for _ in range(4))
    half, copied = torch.empty(_ELEMENTS, dtype=torch.bfloat16), torch.empty(_ELEMENTS)
    buffers = AdamBuffers(weight, gradient, first, second, half)
    settings = AdamSettings(1e-3, 0.9, 0.95, 1e-8, 0.1, step=5)
    parameter = torch.nn.Parameter(torch.rand(_ELEMENTS))
    parameter.grad = gradient
    by_torch = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.1, fused=True)

    def of_torch() -> None:
        gradient.mul_(0.999)
        by_torch.step()
        half.copy_(parameter.detach())

    copy_rate = 8 * _ELEMENTS / _best_s(lambda: copied.copy_(weight))
    own_s, torch_s = _best_s(lambda: kernels.step([buffers], settings, 0.999)), _best_s(of_torch)
    share, faster = _UPDATE_BYTES * _ELEMENTS / own_s / copy_rate, torch_s / own_s
    norm_s = _best_s(lambda: torch.linalg.vector_norm(gradient, dtype=torch.float64))
    norm_faster = norm_s / _best_s(lambda: kernels.squares([gradient]))
    print(f"Adam, clipping and the bf16 weight: {share:.0%} of the copy rate, {faster:.1f}x as fast as torch's passes")
    print(f"the gradients' norm in fp64: {norm_faster:.1f}x as fast as torch's")
    return {"adam_of_copy_rate": share, "adam_to_torch": faster, "norm_to_torch": norm_faster}


def _best_s(run: Callable[[], object], rounds: int = 9) -> float:
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


if __name__ == "__main__":
    main()
