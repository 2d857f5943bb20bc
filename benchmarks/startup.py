"""From launch to the first step with 8 ranks, against 8 processes that import torch and DeepSpeed by themselves."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RANKS = 8
ROUNDS = 3
TARGET = 0.35
TIMEOUT_S = 180.0
_FIRST_STEP = " iteration        1/"
_MODEL = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --position-embedding-type alibi "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 8 --global-batch-size 32 "
    "--lr 3e-3 --vocab-size 1024 --train-iters 1 --log-interval 1 --eval-iters 0 --split 100,0,0"
)


def main() -> dict[str, Any]:
    """Medians of alternating rounds, in seconds, and their ratio."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    if not Path("/dev/nvidiactl").exists():
        environment["DS_ACCELERATOR"] = "cpu"
    imports, first_steps = [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # the record of the environment comes late
        prefix = _write_corpus(Path(folder))
        for number in range(ROUNDS):
            imports.append(_import_s(environment))
            first_steps.append(_first_step_s(environment, Path(folder) / str(number), prefix))
            print(f"round {number + 1}: imports {imports[-1]:.2f} s, first step {first_steps[-1]:.2f} s", flush=True)
    import_s, first_step_s = statistics.median(imports), statistics.median(first_steps)
    ratio = first_step_s / import_s
    print(f"{RANKS} ranks, launch to first step: {first_step_s:.2f} s")
    print(f"{RANKS} processes importing torch and deepspeed: {import_s:.2f} s")
    print(f"ratio {ratio:.2f} (target <= {TARGET})")
    return {
        "ranks": RANKS,
        "first_step_s": first_step_s,
        "import_s": import_s,
        "ratio": ratio,
        "target": TARGET,
        "first_step_rounds_s": first_steps,
        "import_rounds_s": imports,
    }


def _write_corpus(folder: Path) -> str:
    import numpy

    from trainer.data.indexed import write_pair

    tokens = numpy.random.default_rng(0).integers(0, 1024, 100_000).astype("uint16")
    write_pair(folder / "corpus", tokens, numpy.full(100, 1000, "int32"))
    return str(folder / "corpus")


def _import_s(environment: dict[str, str]) -> float:
    started = time.monotonic()
    command = [sys.executable, "-c", "import torch, deepspeed"]
    processes = [
        subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(RANKS)
    ]
    for process in processes:
        if process.wait(timeout=TIMEOUT_S):
            raise RuntimeError("importing torch and deepspeed failed")
    return time.monotonic() - started


def _first_step_s(environment: dict[str, str], attempt: Path, prefix: str) -> float:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-u", "-m", "trainer.launch", "--nnodes", "1", "--nproc-per-node", str(RANKS)]
    command += ["--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    command += ["--attempt-folder", str(attempt), "--", *_MODEL.split(), "--data-path", prefix]
    started = time.monotonic()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        taken, lines = None, []
        for line in process.stdout:
            lines.append(line)
            if taken is None and _FIRST_STEP in line:
                taken = time.monotonic() - started
        process.wait(timeout=TIMEOUT_S)
    if taken is None:
        raise RuntimeError("no first step:\n" + "".join(lines[-30:]))
    return taken


if __name__ == "__main__":
    main()
