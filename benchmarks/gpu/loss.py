"""Linear + cross entropy at BLOOM's vocabulary, compared with torch's two operations and Liger's, with their memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpu.liger import by_liger
from benchmarks.gpu.timing import Turns, median_s
from trainer.parallel.cross_entropy import masked_mean_cross_entropy
from trainer.parallel.process_groups import Parallel

TOKENS, VOCABULARY, HIDDEN = (1024, 2048, 4096, 8192), 250_880, 2048
#: Ours may take so many times as long, at any number of tokens.
GOAL_RATIO = 1.10


def measured(parallel: Parallel, turns: Turns, rehearsed: bool) -> list[dict[str, Any]]:
    """For each number of tokens: seconds forward and backward, the ratio, and bytes beyond weights and gradients."""
    vocabulary, hidden, counts = (64, 16, (8,)) if rehearsed else (VOCABULARY, HIDDEN, TOKENS)
    device, dtype = parallel.device, torch.float32 if rehearsed else torch.bfloat16
    weight = torch.randn(vocabulary, hidden, device=device, dtype=dtype).mul_(0.02).requires_grad_()
    return [_of(count, weight, vocabulary, parallel, turns) for count in counts]


def _of(count: int, weight: Tensor, vocabulary: int, parallel: Parallel, turns: Turns) -> dict[str, Any]:
    hidden, device = weight.shape[1], weight.device
    x = torch.randn(1, count, hidden, device=device, dtype=weight.dtype).requires_grad_()
    labels = torch.randint(vocabulary, (1, count), device=device)
    mask = torch.ones(1, count, device=device)

    def ours() -> None:
        masked_mean_cross_entropy(x, weight, labels, mask, vocabulary, parallel).backward()

    def by_torch() -> None:
        logits = nn.functional.linear(x.view(count, hidden), weight)
        nn.functional.cross_entropy(logits.float(), labels.view(-1)).backward()

    (own_s, own_bytes), (their_s, their_bytes) = (_timed(work, weight, x, turns) for work in (ours, by_torch))
    liger = by_liger().get("linear + cross entropy") if device.type == "cuda" else None
    liger_s, liger_bytes = None, None
    if liger:
        liger_s, liger_bytes = _timed(
            lambda: liger(x.view(count, hidden), weight, labels.view(-1)).backward(), weight, x, turns
        )
    return {
        "tokens": count,
        "ours_s": own_s,
        "torch_s": their_s,
        "ratio": own_s / their_s,
        "goal_ratio": GOAL_RATIO,
        "ours_bytes": own_bytes,
        "torch_bytes": their_bytes,
        "liger_s": liger_s,
        "liger_bytes": liger_bytes,
    }


def _timed(work: Callable[[], None], weight: Tensor, x: Tensor, turns: Turns) -> tuple[float, int]:
    weight.grad = x.grad = None
    work()
    on_gpu = weight.device.type == "cuda"
    before = 0
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    seconds = median_s(work, [()], turns, weight.device)
    return seconds, torch.cuda.max_memory_allocated() - before if on_gpu else 0
