"""On a CUDA device: what a CPU cannot show of a whole training."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.pool import Pool
from tests.distributed.test_launch import launched
from tests.distributed.tiny_training import train
from tests.distributed.whole_training import TINY, write_corpus
from trainer.recipe.options import to_arguments

pytestmark = [pytest.mark.distributed, pytest.mark.gpu]


def losses_of(pool: Pool, steps: int, **changes: Any) -> list[float]:
    return [loss for loss, _ in pool.run(1, train, steps, changes)[0]]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_training_with_our_kernels_has_the_losses_that_it_has_without(pool: Pool, precision: str) -> None:
    asked = {precision: True, "hidden_dropout": 0.1, "position_embedding_type": "alibi"}
    ours = losses_of(pool, 50, **asked)
    by_torch = losses_of(pool, 50, **asked, kernels="torch")
    assert ours == pytest.approx(by_torch, rel=2e-2) and ours[-1] < ours[0] - 0.3


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_launcher_forks_its_rank_before_the_gpu_is_touched(tmp_path: Path, backend: str) -> None:
    words = {**TINY, "data_path": [write_corpus(tmp_path)], "train_iters": 3, "bf16": True}
    arguments = to_arguments({**words, "distributed_backend": backend, "exit_report_path": str(tmp_path / "exit.json")})
    with launched(tmp_path, 1, 1, arguments) as training:
        assert training.statuses() == [0], training.output_of(0)
        said = training.output_of(0)
    assert len(re.findall(r"(?m)^\[default0\]: iteration +\d/ +3 \|", said)) == 3
    assert "kernels: CUDA computes" in said
    assert json.loads((tmp_path / "exit.json").read_text())["reason"] == "finished"


def test_a_kernel_launched_by_the_driver_is_seen_by_torch_on_the_same_stream() -> None:
    text = (
        "import torch; from trainer.recipe.options import parse, to_arguments\n"
        "from trainer.kernels.choice import choose\n"
        "from trainer.kernels.normalization import normalized\n"
        f"options = parse(to_arguments({TINY!r} | dict(train_iters=1)), world_size=1)\n"
        "norms = choose(options, torch.device('cuda', 0)).norms\n"
        "x = torch.randn(64, 48, device='cuda')\n"
        "weight, bias = torch.rand(48, device='cuda'), torch.rand(48, device='cuda')\n"
        "stream = torch.cuda.Stream()\n"
        "with torch.cuda.stream(stream):\n"
        "    y = normalized(x * 2, weight, bias, 1e-5, False, norms)\n"
        "torch.cuda.current_stream().wait_stream(stream)\n"
        "torch.testing.assert_close(y, torch.nn.functional.layer_norm(x * 2, (48,), weight, bias, 1e-5))\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
