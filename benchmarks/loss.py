"""The output layer with its cross entropy at a vocabulary of 250,880, beside torch's linear and cross_entropy.

Forward and backward pass in fp32 on two threads, in turns; time as a ratio of medians, and of each, in a process of its
own, the memory that it takes beside weight, gradient and input.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCABULARY = 250_880
#: Tokens and hidden size.
SHAPES = ((1000, 256), (2000, 256), (4000, 256), (1000, 1024))
THREADS = 2
ROUNDS = 3
#: Copies of all logits that torch makes in fp32: they, their softmax, the gradient; and what everything else takes.
_LOGITS_OF_TORCH = 4
TIME_LIMIT = 1.10
_CHILD_S = 300
Turn = Callable[[], None]


def main() -> dict[str, Any]:
    """Measure, print and return the numbers by shape."""
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
    results: dict[str, Any] = {"time_limit": TIME_LIMIT}
    for tokens, hidden in SHAPES:
        if _available_bytes() < _LOGITS_OF_TORCH * 4 * tokens * VOCABULARY:
            print(f"linear + cross entropy, {tokens} tokens: left out, torch's logits do not fit the free memory")
            continue
        turns, kernels = _turns(tokens, hidden)
        seconds = _in_turns(turns)
        ratio = seconds["ours"] / seconds["torch"]
        peaks = {name: _peak_mib(name, tokens, hidden) for name in turns}
        met = "met" if ratio <= TIME_LIMIT else "MISSED"
        print(
            f"linear + cross entropy, {tokens} tokens x {hidden} x {VOCABULARY}, ours ({kernels}): "
            f"{seconds['ours']:.2f} s, "
            f"{ratio:.2f}x of torch's {seconds['torch']:.2f} s, goal <= {TIME_LIMIT:.2f}x: {met}; "
            f"{peaks['ours']:.0f} MiB, torch {peaks['torch']:.0f} MiB",
            flush=True,
        )
        results[f"{tokens} x {hidden}"] = {"kernels": kernels, "ratio": ratio, "seconds": seconds, "peak_mib": peaks}
        del turns
    return results


def _in_turns(turns: dict[str, Turn]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(ROUNDS + 1):
        for name, turn in turns.items():
            started = time.perf_counter()
            turn()
            if number:  # the first touches memory and starts threads
                taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def _turns(tokens: int, hidden: int) -> tuple[dict[str, Turn], str]:
    """Return what to measure, and what computes ours."""
    from trainer.core.preload import import_engine

    import_engine()
    import torch

    from trainer.kernels.choice import BY_TORCH, Operations
    from trainer.kernels.cpp import CppCrossEntropy
    from trainer.kernels.native.libraries import NotBuilt, operations
    from trainer.parallel.cross_entropy import masked_mean_cross_entropy
    from trainer.parallel.process_groups import Parallel
    from trainer.recipe.layout import Layout

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    x = torch.randn(1, tokens, hidden, requires_grad=True)
    weight = (0.02 * torch.randn(VOCABULARY, hidden)).requires_grad_()
    weight.grad = torch.zeros_like(weight)
    labels, mask = torch.randint(0, VOCABULARY, (1, tokens)), torch.ones(1, tokens)
    library = operations()
    chosen = BY_TORCH if isinstance(library, NotBuilt) else Operations(cross_entropy=CppCrossEntropy(library))
    groups: dict[str, Any] = dict.fromkeys(("tensor_group", "pipeline_group", "data_group", "topology"))
    alone = Parallel(0, 0, Layout(1, 1, 1, 1), **groups, device=torch.device("cpu"), operations=chosen)

    class Sum:
        """The gradient sum of a training in fp32."""

        def multiplier(self) -> float:
            return 1.0

        def weight_sum(self) -> tuple[torch.Tensor, bool]:
            assert weight.grad is not None
            return weight.grad, False

    def ours() -> None:
        x.grad = None
        loss = masked_mean_cross_entropy(x, weight, labels, mask, VOCABULARY, alone, accumulation=Sum())
        loss.backward()

    def of_torch() -> None:
        x.grad = None
        logits = torch.nn.functional.linear(x, weight).view(tokens, VOCABULARY)
        torch.nn.functional.cross_entropy(logits, labels.view(-1)).backward()

    return {"ours": ours, "torch": of_torch}, "torch" if chosen is BY_TORCH else "C++"


def _peak_mib(name: str, tokens: int, hidden: int) -> float:
    command = [sys.executable, "-m", "benchmarks.loss", name, str(tokens), str(hidden)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_CHILD_S)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _print_own_peak(name: str, tokens: int, hidden: int) -> None:
    """MiB that a turn takes at most beside what is there before it."""
    turn = _turns(tokens, hidden)[0][name]
    before = _resident_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    turn()
    print(json.dumps((_resident_kib("VmHWM") - before) / 1024))


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def _resident_kib(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    _print_own_peak(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
