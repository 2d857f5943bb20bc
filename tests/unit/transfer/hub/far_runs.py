"""What a run has in its repository: a log and checkpoints."""

from __future__ import annotations

import json
from typing import cast

from tests.tiny_run import MANIFEST

_LAYOUT = cast("dict[str, object]", MANIFEST["layout"])
PULSE = (
    "[2026-01-02 03:04:05] PULSE: tiny is running for 1:00 since 2026-01-02T02:04:05 "
    "(711114_4 on 'gpu_p5' partition (iam[1-4])) [+0100]"
)


def log_of(iterations: int, total: int = 1000) -> bytes:
    """A training log as the trainer writes it."""
    lines = [
        f" iteration {number:8d}/{total:8d} | consumed samples: {number * 32:12d} | "
        "elapsed time per iteration (s): 2.00 | learning rate: 1.000E-05 | global batch size:    32 | "
        f"lm loss: {5 - number / 1000:.6E} | samples per second: 16.000 | TFLOPs: 100.00 |\n"
        for number in range(1, iterations + 1)
    ]
    return "".join(lines).encode()


def checkpoint_of(
    iteration: int, files: dict[str, bytes], folder: str | None = None, optimizer: str = "adam"
) -> dict[str, bytes | None]:
    """A whole checkpoint's files by path; folder: "" where it has a branch or tag of its own."""
    prefix = f"checkpoints/global_step{iteration}/" if folder is None else folder
    manifest = {
        **MANIFEST,
        "layout": {**_LAYOUT, "optimizer": optimizer},
        "iteration": iteration,
        "consumed_train_samples": iteration * 32,
        "consumed_train_tokens": iteration * 512,
        "files": {name: {"bytes": len(data), "xxh64": "0" * 16} for name, data in files.items()},
    }
    return {prefix + "manifest.json": json.dumps(manifest).encode(), **{prefix + n: d for n, d in files.items()}}
