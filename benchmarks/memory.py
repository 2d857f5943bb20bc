"""The peak memory of every rank beside what `trainer.recipe.memory` predicts for it, on a CPU with gloo.

Measured: the most that was resident in two steps (VmHWM) beyond what the rank had after importing torch and DeepSpeed,
every rank a process of its own with one thread. Its allocator is told to give large pieces back when they are freed, so
that what is measured is in use, as a GPU's is counted; what glibc keeps by itself comes on top (`--as-it-is`).
Trainings that the prediction was tuned on and those held out are told apart; the goal is for the latter.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STEPS = 2
GOAL = 0.10
AS_IT_IS = "--as-it-is"
_M_MMAP_THRESHOLD, _GIVEN_BACK_BYTES = -3, 64 << 10  # mallopt's number for it; smaller pieces stay with the process
_BASE: dict[str, Any] = {
    "num_layers": 8,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "seq_length": 64,
    "vocab_size": 8192,
    "micro_batch_size": 1,
    "global_batch_size": 4,
    "position_embedding_type": "alibi",
}
#: Many activations beside few weights, where the others have it the other way round.
_LONG = {"num_layers": 4, "hidden_size": 256, "seq_length": 256, "micro_batch_size": 8, "global_batch_size": 16}
_LLAMA = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "disable_bias_linear": True,
    "swiglu": True,
    "ffn_hidden_size": 1536,
    "group_query_attention": True,
    "num_query_groups": 4,
    "untie_embeddings_and_output_weights": True,
}
#: One sample of many tokens, in a model of few weights.
_LONG_SAMPLE = {
    "num_layers": 3,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "seq_length": 8192,
    "vocab_size": 2048,
    "global_batch_size": 2,
    "position_embedding_type": "rope",
}
_SLICES = {"sequence_parallel": True}
_ATTENTION = {"recompute": "attention", "num_layers": 4, "hidden_size": 256, "ffn_hidden_size": 768, "seq_length": 2048}
_LEARNED = {"position_embedding_type": "absolute", "hidden_dropout": 0.1, "micro_batch_size": 2}


@dataclass(frozen=True)
class Case:
    """One training: TP x PP x DP, and what its options have beside `_BASE`."""

    name: str
    tensor: int
    pipeline: int
    data: int
    changes: dict[str, Any] = field(default_factory=dict)
    tuned: bool = False

    def __str__(self) -> str:
        kind = "tuned on" if self.tuned else "held out"
        return f"TP {self.tensor} x PP {self.pipeline} x DP {self.data}, {self.name} ({kind})"

    def options(self, precision: str) -> dict[str, Any]:
        """Return the training's options by key."""
        sizes = {"tensor_model_parallel_size": self.tensor, "pipeline_model_parallel_size": self.pipeline}
        return {**_BASE, **sizes, **self.changes, "bf16": precision == "bf16"}


CASES = (
    Case("plain", 1, 1, 1, tuned=True),
    Case("long", 1, 1, 1, _LONG, tuned=True),
    Case("plain", 1, 1, 2, tuned=True),
    Case("long, recompute block", 1, 1, 1, {**_LONG, "recompute": "block"}, tuned=True),
    Case("long", 1, 2, 1, _LONG, tuned=True),
    Case("long", 2, 1, 1, _LONG),
    Case("plain", 2, 2, 1),
    Case("learned positions, dropout", 1, 1, 2, _LEARNED),
    Case("Llama-shaped", 1, 2, 2, _LLAMA),
    Case("long, recompute attention", 2, 2, 1, {**_LONG, "recompute": "attention"}),
    Case("large vocabulary", 1, 2, 1, {"vocab_size": 32768, "micro_batch_size": 2}),
    Case("long, 8 micro-batches", 1, 4, 1, {**_LONG, "micro_batch_size": 4, "global_batch_size": 32}),
    Case("plain", 2, 1, 2),
    Case("8192 tokens in slices, recompute block", 2, 1, 1, {**_LONG_SAMPLE, **_SLICES, "recompute": "block"}),
    Case("Llama-shaped, 2048 tokens in slices, recompute attention", 2, 2, 1, {**_LLAMA, **_SLICES, **_ATTENTION}),
    Case("4096 tokens, window", 1, 1, 1, {**_LONG_SAMPLE, "seq_length": 4096, "window_size": "512,0"}),
)


def main(*wanted: str) -> dict[str, Any]:
    """Measure all, or those whose names have each of the `wanted` words, in fp32, and in bf16 if the CPU has it."""
    from tests.distributed.pool import Pool
    from trainer.parallel.products import cpu_multiplies_bf16

    gives_back = AS_IT_IS not in wanted
    words = [word for word in wanted if word != AS_IT_IS]
    found: dict[str, Any] = {}
    pool = Pool()
    try:
        for precision in ("fp32", "bf16") if cpu_multiplies_bf16() else ("fp32",):
            for case in CASES:
                name = f"{precision}, {case}"
                if all(word in name for word in words):
                    found[name] = _measured(pool, case, precision, gives_back)
                    _print(name, found[name])
    finally:
        pool.close()
    worst = max((one["off"] for one in found.values() if not one["tuned"]), key=abs, default=0.0)
    print(f"held out: {worst:+.1%} at the worst (goal: within {GOAL:.0%})")
    return {"trainings": found, "worst_held_out": worst, "goal": GOAL}


def _measured(pool: Any, case: Case, precision: str, gives_back: bool) -> dict[str, Any]:
    # Through the package: as a program this module has another name, which ranks cannot import.
    from benchmarks.memory import trained

    world = case.tensor * case.pipeline * case.data
    ranks = pool.run(world, trained, case.options(precision), gives_back, timeout_s=300.0)
    offs = [one["predicted_bytes"] / one["measured_bytes"] - 1 for one in ranks]
    return {"ranks": ranks, "off": max(offs, key=abs), "tuned": case.tuned}


def _print(name: str, found: dict[str, Any]) -> None:
    each = ", ".join(f"{one['predicted_bytes'] / 1e6:.0f}/{one['measured_bytes'] / 1e6:.0f}" for one in found["ranks"])
    print(f"{name:70} {found['off']:+6.1%}  predicted/measured MB: {each}", flush=True)


def trained(changes: dict[str, Any], gives_back: bool) -> dict[str, Any]:
    """In a rank: the most bytes that it took beyond its imports, and what was predicted, by part."""
    import dataclasses

    import torch

    from tests.distributed.tiny_training import step_items, tiny_engine
    from trainer.engine.build import train_step
    from trainer.recipe.memory import rank_memory

    torch.set_num_threads(1)
    if gives_back:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _GIVEN_BACK_BYTES)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    options, parallel, engine = tiny_engine(**changes)
    for step in range(STEPS):
        items = iter(step_items(options, parallel, step)) if parallel.needs_data else None
        train_step(engine, items, 1e-3)
    measured = _status_bytes("VmHWM") - before
    found = rank_memory(options, engine.module.shape, parallel.layout, parallel.pipeline_rank, on_cpu=True)
    return {"measured_bytes": measured, "predicted_bytes": found.peak_bytes, "parts": dataclasses.asdict(found)}


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    main(*sys.argv[1:])
