"""Whole trainings on one GPU: a GPT of 1.3 billion weights, and BLOOM-1b1's shape beside transformers' own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

from trainer.recipe.model_options import Vocabulary

_WARM_UP, _STEPS = 5, 20
_LEARNING_RATE = 1e-4
_SHARED: dict[str, Any] = {
    "seq_length": 2048,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "clip_grad": 1.0,
    "lr": _LEARNING_RATE,
    "train_iters": 1000,
}
GPT_1_3B: dict[str, Any] = {
    "num_layers": 24,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "vocab_size": 50304,
    "micro_batch_size": 8,
}
BLOOM_1B1: dict[str, Any] = {
    "num_layers": 24,
    "hidden_size": 1536,
    "num_attention_heads": 16,
    "vocab_size": 250880,
    "position_embedding_type": "alibi",
    "embed_layernorm": True,
    "micro_batch_size": 2,  # transformers' attention and logits take more than 80 GB of 4
}
#: So that the code runs once where there is no GPU.
REHEARSED: dict[str, Any] = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "vocab_size": 64}
REHEARSED |= {"seq_length": 16, "micro_batch_size": 1}


def gpt(precision: str, rehearsed: bool) -> dict[str, Any]:
    """Return tokens per second, the share of the chip's peak, and a step's launches, waits and time on the host."""
    from trainer.engine.build import initialize
    from trainer.loop.log import throughput_of
    from trainer.recipe.model_shape import ModelShape

    options = _options(GPT_1_3B, precision, rehearsed)
    parallel = initialize(options, alone=True)
    step_s, peak_bytes, host = _ours(options, parallel, rehearsed)
    shape = ModelShape.of(options, Vocabulary.unpadded(options.vocab_size))
    speed = throughput_of(options, parallel, shape).of(options.micro_batch_size, step_s)
    return {
        "tokens_per_second": speed.tokens_per_second,
        "model_tflops": speed.model_tflops,
        "mfu": speed.mfu,
        "peak_bytes": peak_bytes,
        "goal_mfu": 0.55,
        **host,
    }


def bloom(rehearsed: bool) -> dict[str, Any]:
    """Tokens a second of ours and of transformers' in eager mode, each with what memory it takes at most."""
    from trainer.engine.build import initialize

    options = _options(BLOOM_1B1, "bf16", rehearsed)
    parallel = initialize(options, alone=True)
    tokens = options.micro_batch_size * options.seq_length
    step_s, peak_bytes, _ = _ours(options, parallel, rehearsed)
    their_step_s, their_peak_bytes = _transformers_bloom(options, parallel.device, rehearsed)
    return {
        "tokens_per_second": tokens / step_s,
        "tokens_per_second_transformers": tokens / their_step_s,
        "ratio": their_step_s / step_s,
        "goal_ratio": 2.0,
        "peak_bytes": peak_bytes,
        "peak_bytes_transformers": their_peak_bytes,
    }


def _options(model: dict[str, Any], precision: str, rehearsed: bool) -> Any:
    """Return the options of a model, or of a tiny one in fp32."""
    from trainer.recipe.options import parse, to_arguments

    smaller = REHEARSED if rehearsed else {precision: True}
    return parse(to_arguments({**_SHARED, **model, **smaller}), world_size=1)


def _ours(options: Any, parallel: Any, rehearsed: bool) -> tuple[float, int, dict[str, float]]:
    from trainer.engine.build import build_engine, train_step
    from trainer.model.pipeline import engine_item

    engine = build_engine(options, parallel, Vocabulary.unpadded(options.vocab_size))
    drawn = (
        torch.randint(options.vocab_size, (options.micro_batch_size, options.seq_length + 1)) for _ in itertools.count()
    )

    def step() -> None:
        train_step(engine, iter([engine_item(next(drawn))]), _LEARNING_RATE)

    measured = _measured(step, parallel.device, rehearsed)
    host = _host_of(step)
    engine.destroy()
    return *measured, host


def _host_of(step: Callable[[], None]) -> dict[str, float]:
    """Return a step's kernel launches, its waits for the GPU, and the seconds in which the host did not wait.

    The profiler makes the host slower, so the seconds are an upper bound.
    """
    with torch.profiler.profile() as profile:
        begin = time.perf_counter()
        step()
        spent_s = time.perf_counter() - begin
    calls = profile.key_averages()
    waits = [one for one in calls if one.key.startswith("cuda") and one.key.endswith("Synchronize")]
    return {
        "launches": sum(one.count for one in calls if "LaunchKernel" in one.key),
        "waits": sum(one.count for one in waits),
        "host_s": spent_s - sum(one.self_cpu_time_total for one in waits) / 1e6,
    }


def _transformers_bloom(options: Any, device: torch.device, rehearsed: bool) -> tuple[float, int]:
    """As its users train it: weights in fp32, computed in bf16 by autocast, torch's fused AdamW."""
    from transformers import BloomConfig, BloomForCausalLM

    model: Any = BloomForCausalLM(
        BloomConfig(
            vocab_size=options.vocab_size,
            hidden_size=options.hidden_size,
            n_layer=options.num_layers,
            n_head=options.num_attention_heads,
            use_cache=False,
        )
    )
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, fused=True)

    def step() -> None:
        tokens_bs = torch.randint(options.vocab_size, (options.micro_batch_size, options.seq_length), device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=options.bf16):
            loss = model(input_ids=tokens_bs, labels=tokens_bs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return _measured(step, device, rehearsed)


def _measured(step: Callable[[], None], device: torch.device, rehearsed: bool) -> tuple[float, int]:
    """(seconds of a step, the most bytes of the GPU that were in use)."""
    on_gpu = device.type == "cuda"
    for _ in range(1 if rehearsed else _WARM_UP):
        step()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    steps, begin = 1 if rehearsed else _STEPS, time.perf_counter()
    for _ in range(steps):
        step()
    if on_gpu:
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / steps, torch.cuda.max_memory_allocated() if on_gpu else 0
