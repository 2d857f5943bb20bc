"""The conversion of NVML's answers. Without a GPU, a fake replaces its binding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer.launcher import node_sampler as module
from trainer.launcher.node_sampler import gpu_samples


class Nvml:
    """Three GPUs: one that tells all, one that knows no ECC, one that has fallen off the bus."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = 0, 1

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 2:
            raise RuntimeError("GPU is lost")
        return index

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=10, total=80)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 412_500

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return 0x1 | 0x40  # idle is no throttling

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 88

    def nvmlDeviceGetClockInfo(self, handle: int, which: int) -> int:
        return 1200

    def nvmlDeviceGetMaxClockInfo(self, handle: int, which: int) -> int:
        return 1980

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        if handle == 1:
            raise RuntimeError("not supported")
        return (7, 1)[kind]


def test_each_gpu_tells_what_it_can_and_one_that_is_lost_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_nvml", Nvml)
    first, second = gpu_samples()
    assert (first.memory_used_bytes, first.memory_bytes, first.temperature_c, first.power_w) == (10, 80, 88, 412.5)
    assert (first.clock_mhz, first.most_clock_mhz, first.throttled) == (1200, 1980, ("hardware thermal slowdown",))
    assert (first.ecc_corrected, first.ecc_uncorrected) == (7, 1)
    assert (second.index, second.ecc_corrected, second.ecc_uncorrected) == (1, None, None)


def test_without_nvml_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_nvml", lambda: None)
    assert gpu_samples() == ()
