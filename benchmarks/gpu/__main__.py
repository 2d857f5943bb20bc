"""`make bench-gpu`: the table of kernels, linear + cross entropy, and whole trainings, on the GPU of this machine.

`--rehearse` runs all of it once, small, on whatever is here: it shows that the code runs, and measures nothing.
What was measured goes to benchmarks/gpu/results/DATE-CHIP.json, to be committed; parts (`--only`) measured on one day
are in one file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.core.preload import import_engine

import_engine()

import torch  # noqa: E402

from benchmarks.gpu import loss, training  # noqa: E402
from benchmarks.gpu.cases import Case, Sizes, cases  # noqa: E402
from benchmarks.gpu.liger import by_liger  # noqa: E402
from benchmarks.gpu.timing import (  # noqa: E402
    Buffers,
    Turns,
    buffer_sets,
    cache_bytes,
    copy_s,
    median_s,
)
from trainer.engine.build import initialize  # noqa: E402
from trainer.kernels.choice import (  # noqa: E402
    Operations,
    every_kernel,
    source_of,
)
from trainer.recipe.options import parse, to_arguments  # noqa: E402

_RESULTS = Path(__file__).parent / "results"
_PARTS = ("kernels", "loss", "training")
_SMALL = Sizes(4, 32, 64, 1, 2, 16, 48, 256, torch.float32)
_ONE_GPT = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 16, "vocab_size": 64}


def main(argv: list[str] | None = None) -> int:
    """0 measured, 1 there is no GPU, 2 wrong usage."""
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="run the code once, small, with or without a GPU")
    parser.add_argument("--only", choices=_PARTS, action="append", help="not all of it")
    arguments = parser.parse_args(argv)
    rehearsed: bool = arguments.rehearse
    if not (rehearsed or torch.cuda.is_available()):
        print("bench-gpu: no CUDA device here; --rehearse runs the code without one", file=sys.stderr)
        return 1
    parts = arguments.only or _PARTS
    options = parse(to_arguments({**_ONE_GPT, "micro_batch_size": 1, "lr": 1e-4, "train_iters": 1}), world_size=1)
    parallel = initialize(options, alone=True)
    source = source_of(options, parallel.device)
    if source.made_from is None and not rehearsed:
        print(f"bench-gpu: no kernels to measure: {source.why}", file=sys.stderr)
        return 1
    turns = Turns(1, 2, 1 << 16) if rehearsed else Turns()
    results: dict[str, Any] = {"about": about(parallel.device), "paths": [asdict(x) for x in parallel.operations.paths]}
    if "kernels" in parts:
        results |= _kernels(every_kernel(source), parallel.device, _SMALL if rehearsed else Sizes(), turns)
    if "loss" in parts:
        results["linear_cross_entropy"] = _told(loss.measured(parallel, turns, rehearsed))
    if "training" in parts:
        for precision in ("bf16", "fp16"):
            results[f"gpt_1.3B_{precision}"] = _told([training.gpt(precision, rehearsed)])[0]
        results["bloom_1b1"] = _told([training.bloom(rehearsed)])[0]
    if not rehearsed:
        print(f"written to {_written(results)}")
    return 0


def about(device: torch.device) -> dict[str, Any]:
    """When, on what, with which versions."""
    on_gpu = device.type == "cuda"
    return {
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "device": torch.cuda.get_device_name(device) if on_gpu else "none",
        "capability": ".".join(map(str, torch.cuda.get_device_capability(device))) if on_gpu else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def _kernels(kernels: Operations, device: torch.device, sizes: Sizes, turns: Turns) -> dict[str, Any]:
    cache = cache_bytes(device)
    rate = turns.copied_bytes / copy_s(turns.copied_bytes, device, cache, turns)
    print(f"copying memory to memory: {rate / 1e9:.0f} GB/s, read and written; 'copy': us for as many bytes")
    columns = ("us", "of copy", "goal", "copy", "torch", "compiled", "liger")
    print(f"{'kernel':32} {'shape':32}", *(f"{name:>8}" for name in columns))
    rows = [_row(case, rate, cache, turns, device) for case in cases(kernels, device, sizes)]
    return {"copy_bytes_per_s": rate, "kernels": rows}


def _row(case: Case, rate: float, cache: int, turns: Turns, device: torch.device) -> dict[str, Any]:
    sets = buffer_sets(case.make, cache)
    own_s, torch_s = (median_s(work, sets, turns, device) for work in (case.ours, case.by_torch))
    on_gpu = device.type == "cuda"
    compiled_s = _compiled_s(case, sets, turns, device) if on_gpu else None
    theirs = by_liger().get(case.name) if on_gpu else None
    liger_s = median_s(theirs, sets, turns, device) if theirs else None
    equal_s = copy_s(case.bytes_moved, device, cache, turns)
    share = case.bytes_moved / own_s / rate
    goal = "" if case.goal is None else f"{case.goal:.0%}"
    times = ("" if s is None else f"{s * 1e6:.1f}" for s in (equal_s, torch_s, compiled_s, liger_s))
    words = (f"{own_s * 1e6:.1f}", f"{share:.1%}", goal, *times)
    print(f"{case.name:32} {case.shape:32}", *(f"{word:>8}" for word in words), flush=True)
    return {
        "kernel": case.name,
        "shape": case.shape,
        "bytes": case.bytes_moved,
        "ours_s": own_s,
        "share_of_copy": share,
        "goal": case.goal,
        "copy_s": equal_s,
        "torch_s": torch_s,
        "compiled_s": compiled_s,
        "liger_s": liger_s,
    }


def _compiled_s(case: Case, sets: list[Buffers], turns: Turns, device: torch.device) -> float | None:
    compiled = torch.compile(case.by_torch, mode="max-autotune-no-cudagraphs", dynamic=False)
    try:
        return median_s(compiled, sets, turns, device)
    except Exception as error:  # whatever a compiler raises, the other ways are measured all the same
        print(f"{case.name} by torch.compile: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
        return None


def _told(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        print(
            ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
        )
    return rows


def _written(results: dict[str, Any]) -> Path:
    _RESULTS.mkdir(exist_ok=True)
    chip = re.sub(r"[^A-Za-z0-9]+", "-", results["about"]["device"]).strip("-")
    target = _RESULTS / f"{time.strftime('%Y-%m-%d')}-{chip}.json"
    before = json.loads(target.read_text()) if target.exists() else {}
    target.write_text(json.dumps(before | results, indent=2) + "\n")
    return target


if __name__ == "__main__":
    sys.exit(main())
