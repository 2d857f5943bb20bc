"""Training tokens/s on a CPU through the engine, beside transformers' BLOOM, GPT-2 and Llama of the same shape.

4 layers, hidden 256, 8 heads, sequence 256, vocabulary 4096, batch 8, fp32, AdamW, clipping at 1.0, no dropout, each
with its default attention, one process, two threads. The candidates take turns step by step and the ratios are medians
over steps of the same turn, so that a busy machine slows all alike. What each has resident at most is that of a
process of its own (`--peak NAME`).
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

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, BATCH = 4, 256, 8, 256, 4096, 8
LEARNING_RATE = 3e-4
THREADS = 2
#: As Llama's, with as many weights in a block as the others: a gate costs what shared keys and values save.
FFN, GROUPS = 768, 4
LLAMA: dict[str, Any] = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "disable_bias_linear": True,
    "swiglu": True,
    "ffn_hidden_size": FFN,
    "group_query_attention": True,
    "num_query_groups": GROUPS,
}
GOALS = {"BLOOM": 1.4, "GPT-2": 1.25, "Llama": 1.0, "share of matrix rate": 0.78, "peak memory": 0.6}
PEAK, PEAK_STEPS, PEAK_TIMEOUT_S = "--peak", 4, 600
Step = Callable[[], None]


def main(rounds: int = 16) -> dict[str, Any]:
    """Measure, print a table, and return the numbers by name for a JSON file.

    On a machine busy with other work even medians wander; the fastest steps then say more.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
    from trainer.core.preload import import_engine

    import_engine()
    import torch

    torch.set_num_threads(THREADS)
    candidates = {name: make() for name, make in CANDIDATES.items()}
    for step in candidates.values():
        step()
        step()
    rates: dict[str, list[float]] = {name: [] for name in candidates}
    products: list[float] = []
    for _ in range(rounds):
        products.append(_matrix_rate())
        for name, step in candidates.items():
            rates[name].append(_tokens_per_second(step))
    return {**_report(rates, max(products)), "peak_mib": _report_peaks()}


def _report(rates: dict[str, list[float]], matrix_flops: float) -> dict[str, Any]:
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ours_alibi, bloom, ours_learned, gpt2, ours_rotary, llama = rates.values()
    to_bloom, to_gpt2 = _median_ratio(ours_alibi, bloom), _median_ratio(ours_learned, gpt2)
    to_llama = _median_ratio(ours_rotary, llama)
    print(f"{'model':36} {'tokens/s':>10} {'least':>8} {'most':>8} {'of matrix rate':>15}")
    for name, values in rates.items():
        share = medians[name] * _flops_per_token() / matrix_flops
        print(f"{name:36} {medians[name]:10.0f} {min(values):8.0f} {max(values):8.0f} {share:15.1%}")
    print(f"this machine's fp32 matrix products: {matrix_flops / 1e9:.0f} GFLOP/s with {THREADS} threads")
    fastest_bloom, fastest_gpt2 = max(ours_alibi) / max(bloom), max(ours_learned) / max(gpt2)
    fastest_llama = max(ours_rotary) / max(llama)

    def ratios(bloom: float, gpt2: float, llama: float) -> str:
        return f"ours / BLOOM {bloom:.2f}x, ours / GPT-2 {gpt2:.2f}x, ours / Llama {llama:.2f}x"

    print(f"{ratios(to_bloom, to_gpt2, to_llama)} (medians over turns)")
    print(f"{ratios(fastest_bloom, fastest_gpt2, fastest_llama)} (each one's fastest step: no other load)")
    goals = ratios(GOALS["BLOOM"], GOALS["GPT-2"], GOALS["Llama"])
    print(f"goals: {goals}, {GOALS['share of matrix rate']:.0%} of the rate")
    return {
        "tokens_per_second": medians,
        "ratio_to_bloom": to_bloom,
        "ratio_to_gpt2": to_gpt2,
        "ratio_to_llama": to_llama,
        "ratio_of_fastest_to_llama": fastest_llama,
        "ratio_of_fastest_to_bloom": fastest_bloom,
        "ratio_of_fastest_to_gpt2": fastest_gpt2,
        "matrix_gflops": matrix_flops / 1e9,
        "share_of_matrix_rate": {name: rate * _flops_per_token() / matrix_flops for name, rate in medians.items()},
        "model_flops_per_token": _flops_per_token(),
    }


def _report_peaks() -> dict[str, float]:
    """The most that a process with each candidate has resident, in MiB."""
    from trainer.core.preload import ALLOCATOR, ALLOCATOR_ON_CPU

    peaks = {}
    for name in CANDIDATES:
        # Ours as the launcher starts its ranks.
        environment = {**os.environ, ALLOCATOR: ALLOCATOR_ON_CPU} if name.startswith("ours") else None
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.trainer_throughput", PEAK, name],
            capture_output=True,
            text=True,
            timeout=PEAK_TIMEOUT_S,
            check=True,
            env=environment,
        )
        peaks[name] = float(done.stdout.split()[-1])
    found = list(peaks.items())
    for (own, of_own), (other, of_other) in zip(found[::2], found[1::2], strict=True):
        print(f"peak memory: {own} {of_own:.0f} MiB, {other} {of_other:.0f} MiB: {of_own / of_other:.2f}x")
    print(f"goal: {GOALS['peak memory']:.2f}x")
    return peaks


def _peak(name: str) -> float:
    """MiB that this process had resident at most, after some steps of the candidate."""
    import torch

    torch.set_num_threads(THREADS)
    step = CANDIDATES[name]()
    for _ in range(PEAK_STEPS):
        step()
    # Not getrusage's, which a process has from the one that started it.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _flops_per_token() -> float:
    """Operations of forward and backward per token: 6 per weight of a product, and attention's whole square."""
    weights = 12 * LAYERS * HIDDEN**2 + VOCABULARY * HIDDEN
    return 6.0 * weights + 12.0 * LAYERS * HIDDEN * SEQUENCE


def _median_ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(own / other for own, other in zip(ours, theirs, strict=True))


def _tokens_per_second(step: Step) -> float:
    start = time.perf_counter()
    step()
    return BATCH * SEQUENCE / (time.perf_counter() - start)


def _matrix_rate() -> float:
    """fp32 operations per second of a 1024 x 1024 x 1024 product, the best of ten."""
    import torch

    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(10):
        start = time.perf_counter()
        left @ right
        best = min(best, time.perf_counter() - start)
    return 2 * 1024**3 / best


def options(world_size: int, **others: Any) -> Any:
    """The trainer's options for this shape, with others beside them or in their place."""
    from trainer.recipe.options import parse, to_arguments

    shape = {
        "num_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "seq_length": SEQUENCE,
        "micro_batch_size": BATCH,
        "vocab_size": VOCABULARY,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "clip_grad": 1.0,
        "lr": LEARNING_RATE,
        "train_iters": 1000,
    }
    return parse(to_arguments({**shape, **others}), world_size=world_size)


def _engine_step(model: dict[str, Any]) -> Step:
    import torch

    from trainer.engine.build import Vocabulary, build_engine, initialize, train_step
    from trainer.model.pipeline import engine_item

    own = options(1, **model)
    parallel = initialize(own)
    engine = build_engine(own, parallel, Vocabulary.unpadded(VOCABULARY))
    of_samples = batches()

    def step() -> None:
        train_step(engine, iter([engine_item(next(of_samples))]), LEARNING_RATE)

    assert torch.get_num_threads() == THREADS
    return step


def _transformers_step(model: Any) -> Step:
    """One plain training step: forward with labels, backward, clip, AdamW."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    of_samples = batches()
    model.train()

    def step() -> None:
        tokens_bs = next(of_samples)[:, :SEQUENCE]
        loss = model(input_ids=tokens_bs, labels=tokens_bs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _bloom() -> Any:
    from transformers import BloomConfig, BloomForCausalLM

    return BloomForCausalLM(
        BloomConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            n_layer=LAYERS,
            n_head=HEADS,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            use_cache=False,
        )
    )


def _gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=SEQUENCE,
            n_embd=HIDDEN,
            n_layer=LAYERS,
            n_head=HEADS,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
    )


def _llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=FFN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=GROUPS,
            tie_word_embeddings=True,
            use_cache=False,
        )
    )


def batches(size: int = BATCH) -> Any:
    """Random samples of sequence + 1 tokens, the same for every candidate."""
    import torch

    generator = torch.Generator().manual_seed(0)
    while True:
        yield torch.randint(0, VOCABULARY, (size, SEQUENCE + 1), generator=generator)


#: Ours, and after each what it is checked against.
CANDIDATES: dict[str, Callable[[], Step]] = {
    "ours, ALiBi + embedding LayerNorm": lambda: _engine_step(
        {"position_embedding_type": "alibi", "embed_layernorm": True}
    ),
    "transformers BloomForCausalLM": lambda: _transformers_step(_bloom()),
    "ours, learned positions": lambda: _engine_step({}),
    "transformers GPT2LMHeadModel": lambda: _transformers_step(_gpt2()),
    "ours, rotary, RMSNorm, gate, groups": lambda: _engine_step(LLAMA),
    "transformers LlamaForCausalLM": lambda: _transformers_step(_llama()),
}


if __name__ == "__main__":
    if sys.argv[1:2] == [PEAK]:
        os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))
        print(_peak(sys.argv[2]))
        sys.exit()
    measured = main()
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(measured, indent=2) + "\n")
