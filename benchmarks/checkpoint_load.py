"""Loading a checkpoint into the layout that saved it and into others: memory beside a rank's own state, time beside dd.

Each rank's state is its weights, its part of the fp32 weights, and of the moments. Memory is the peak of the resident
set during the load (VmHWM, set back before it) beyond what the engine had; what it had of the state is counted as it
is. dd reads as many bytes from the same files, one process for each rank, at the same time; both begin with the files
out of the page cache.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL = {
    "num_layers": 8,
    "hidden_size": 768,
    "num_attention_heads": 8,
    "seq_length": 32,
    "vocab_size": 8192,
    "train_iters": 1,
    "position_embedding_type": "alibi",
}
#: name -> tensor, pipeline; on two ranks
LAYOUTS: dict[str, tuple[int, int]] = {"same": (1, 1), "TP 2": (2, 1), "PP 2": (1, 2)}
RANKS = 2
ROUNDS = 3
MEMORY_GOAL, SPEED_GOAL = 1.2, 0.7


def main() -> dict[str, Any]:
    """For each layout the worst rank's memory and the ranks' speed beside dd's, medians."""
    from tests.distributed.pool import Pool

    pool, measured = Pool(), {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for precision in ("fp32", "bf16"):
                pool.run(RANKS, saved, f"{folder}/{precision}", precision)
                for name, layout in LAYOUTS.items():
                    rounds = [
                        _round(pool, Path(f"{folder}/{precision}/global_step1"), layout, precision)
                        for _ in range(ROUNDS)
                    ]
                    found = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
                    measured[f"{precision}, {name}"] = found
                    print(
                        f"{precision}, DP 2 into {name}: memory {found['memory']:.2f} of the state "
                        f"(goal <= {MEMORY_GOAL}), {found['speed']:.2f} of dd's speed (goal >= {SPEED_GOAL}); "
                        f"{found['bytes'] / 1e6:.0f} MB in {found['load_s']:.2f} s, dd {found['dd_s']:.2f} s",
                        flush=True,
                    )
        finally:
            pool.close()
    return measured


def _round(pool: Any, folder: Path, layout: tuple[int, int], precision: str) -> dict[str, float]:
    _out_of_cache(folder)
    ranks = pool.run(RANKS, loaded, str(folder), layout, precision)
    dd_s = _dd(folder, [rank["bytes"] for rank in ranks])
    load_s = max(rank["load_s"] for rank in ranks)
    return {
        "memory": max(rank["memory"] for rank in ranks),
        "speed": dd_s / load_s,
        "bytes": sum(rank["bytes"] for rank in ranks),
        "load_s": load_s,
        "dd_s": dd_s,
    }


def _out_of_cache(folder: Path) -> None:
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _dd(folder: Path, sizes: list[int]) -> float:
    """Seconds of as many processes as there are sizes, each reading so many bytes of the checkpoint's files."""
    _out_of_cache(folder)
    weights = sorted(folder.glob("layer_*"))
    states = sorted(folder.glob("*optim_states.pt"))
    commands = []
    for rank, size in enumerate(sizes):
        command, left = [], size
        for file in [*weights, *states[rank:], *states[:rank]]:
            take = min(left, file.stat().st_size)
            if take:
                command.append(f"dd if={file} of=/dev/null bs=4M iflag=count_bytes count={take} 2>/dev/null")
            left -= take
        commands.append(" && ".join(command))
    started = time.monotonic()
    running = [subprocess.Popen(["bash", "-c", command]) for command in commands]
    for one in running:
        one.wait()
    return time.monotonic() - started


def _options(precision: str, layout: tuple[int, int] = (1, 1)) -> dict[str, Any]:
    sizes = {"tensor_model_parallel_size": layout[0], "pipeline_model_parallel_size": layout[1]}
    return {**MODEL, **sizes, "micro_batch_size": 1, "global_batch_size": 2, "bf16": precision == "bf16"}


def saved(folder: str, precision: str) -> None:
    """In a rank: train one step and save."""
    from tests.distributed.tiny_training import step_items, tiny_engine
    from trainer.checkpoint.destination import Destination
    from trainer.checkpoint.save import save_checkpoint
    from trainer.core.files import HeldFolder
    from trainer.engine.build import Vocabulary, train_step
    from trainer.formats.checkpoint.changes import Identity
    from trainer.formats.checkpoint.manifest import Manifest
    from trainer.formats.checkpoint.partitions import saved_parameters
    from trainer.recipe.model_shape import ModelShape

    options, parallel, engine = tiny_engine(**_options(precision))
    train_step(engine, iter(step_items(options, parallel, 0)), 1e-3)
    vocabulary = Vocabulary.of(options.vocab_size, options)
    identity = Identity.of(options, parallel.world_size, vocabulary)
    manifest = Manifest(
        iteration=1,
        consumed_train_samples=2,
        consumed_train_tokens=64,
        consumed_valid_samples=0,
        precision=precision,
        layout=identity.layout,
        model=identity.model,
        learning_rate={},
        files={},
        parameters=saved_parameters(ModelShape.of(options, vocabulary)),
    )
    save_checkpoint(engine, Destination(HeldFolder(Path(folder))), manifest, {})


def loaded(folder: str, layout: tuple[int, int], precision: str) -> dict[str, float]:
    """In a rank: load and say what it took."""
    import torch
    import torch.distributed as dist

    from tests.distributed.tiny_training import tiny_engine
    from trainer.checkpoint.load import load_checkpoint
    from trainer.formats.checkpoint.manifest import Found, read_manifest

    _, _, engine = tiny_engine(**_options(precision, layout))
    found = Found(Path(folder), read_manifest(Path(folder)))
    partitions = [group["params"][0] for group in engine.optimizer.optimizer.param_groups]
    weights = sum(one.numel() * one.element_size() for one in engine.module.parameters())
    masters = sum(one.numel() * 4 for one in partitions)
    state = weights + 3 * masters
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    started = time.monotonic()
    load_checkpoint(engine, found)
    load_s = time.monotonic() - started
    beyond = _status_bytes("VmHWM") - before
    assert all(math.isfinite(float(torch.linalg.norm(one.detach()))) for one in partitions)
    return {"memory": (weights + masters + beyond) / state, "bytes": state, "load_s": load_s}


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
