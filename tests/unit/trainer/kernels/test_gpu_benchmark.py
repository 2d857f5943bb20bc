"""`make bench-gpu`, as far as it runs without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator.runner import EmulatedRunner, needs_gxx

ROOT = Path(__file__).resolve().parents[4]


def bench_gpu(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.gpu", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.nightly
def test_every_part_of_the_benchmark_on_a_gpu_runs_where_there_is_none_when_it_is_only_rehearsed() -> None:
    done = bench_gpu("--rehearse")
    assert done.returncode == 0, done.stderr
    for word in ("copying memory to memory", "tokens 8, ours_s", "goal_mfu 0.55", "tokens_per_second_transformers"):
        assert word in done.stdout


@needs_gxx
def test_every_case_of_the_table_runs_on_the_emulated_kernels() -> None:
    import torch

    from benchmarks.gpu.cases import Sizes, cases
    from trainer.kernels.choice import CUDA, Source, every_kernel

    kernels = every_kernel(Source(CUDA, EmulatedRunner(), "emulated"))
    small = Sizes(4, 32, 64, 1, 2, 16, 48, 256, torch.float32)
    found = cases(kernels, torch.device("cpu"), small)
    names = {case.name for case in found}
    assert {"causal softmax forward", "causal softmax backward", "LayerNorm backward", "cross entropy"} <= names
    assert {"bias + GeLU backward", "Adam, fp32 and 16-bit weight", "residual + dropout(x + bias)"} <= names
    for case in found:
        case.ours(*case.make())
        case.by_torch(*case.make())


@pytest.mark.nightly
def test_without_a_gpu_nothing_is_measured() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = bench_gpu()
    assert done.returncode == 1 and "tokens" not in done.stdout
    assert "--rehearse" in done.stderr
