"""GPUs, where there are some: their rates, what they compute, what NVML says, and NCCL between two of them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.free_port import free_port
from trainer.formats.attempt.node_samples import QUICK, ProbeLine
from trainer.formats.tolerant import decode
from trainer.launcher.probing import machine, products

pytestmark = pytest.mark.gpu


class Told:
    """What a part has told, by measure and GPU."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int | None], float | str] = {}

    def __call__(self, what: str, found: float | str, of: int | None = None) -> None:
        self.found[what, of] = found


def test_each_gpu_computes_whole_numbers_right_and_tells_how_fast() -> None:
    import torch

    told = Told()
    products.measure_gpus(told, QUICK)
    for number in range(torch.cuda.device_count()):
        assert told.found["wrong", number] == 0
        for what in ("fp32_tflops", "bf16_tflops", "copy_gbs"):
            assert isinstance(rate := told.found[what, number], float) and rate > 0


def test_nvml_knows_as_many_gpus_as_there_are_and_how_much_of_each_is_taken() -> None:
    told = Told()
    machine.describe_gpus(told)
    count = told.found["count", None]
    assert isinstance(count, int) and count > 0
    assert all(("memory_used_mib", number) in told.found for number in range(count))


def test_two_gpus_talk_by_nccl_and_what_arrives_is_what_was_sent() -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    port = str(free_port())
    words = [*(sys.executable, "-u", "-m", "trainer.launcher.probing", "network", "--effort", "quick", "--nodes", "2")]
    words += ["--address", "127.0.0.1", "--port", port]
    running = [
        subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "CUDA_VISIBLE_DEVICES": str(rank),
                "SLURM_PROCID": str(rank),
                "SLURMD_NODENAME": f"x{rank}",
            },
        )
        for rank in range(2)
    ]
    lines = [
        line
        for process in running
        for text in process.communicate(timeout=60)[0].splitlines()
        if (line := decode(text, ProbeLine)) is not None
    ]
    assert {line.text for line in lines if line.what == "backend"} == {"nccl"}
    assert [line.number for line in lines if line.what in ("link_wrong", "ring_wrong")] == [0.0] * 4
