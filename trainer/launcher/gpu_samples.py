"""GPUs as NVML tells them, where its Python binding and a driver are; nothing is asked of CUDA."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from trainer.formats.attempt.node_samples import GpuSample

#: NVML's bits of why a clock is held down, in the order of their numbers; idle and set by a person are no throttling.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
_CORRECTED, _UNCORRECTED, _VOLATILE = 0, 1, 0


def gpu_samples() -> tuple[GpuSample, ...]:
    """All that this process may see; empty without any, or without NVML."""
    nvml = _nvml()
    if nvml is None:
        return ()
    found = []
    with contextlib.suppress(Exception):  # a driver that was reloaded meanwhile
        for index in range(nvml.nvmlDeviceGetCount()):
            with contextlib.suppress(Exception):  # a GPU that has fallen off the bus
                found.append(_one(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index)))
    return tuple(found)


@functools.cache
def _nvml() -> Any:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no binding, no driver, no GPU
        return None
    return pynvml


def _one(nvml: Any, index: int, handle: Any) -> GpuSample:
    def asked(call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(handle, *arguments)
        except Exception:  # not every GPU tells everything
            return None

    memory = asked(nvml.nvmlDeviceGetMemoryInfo)
    power_mw = asked(nvml.nvmlDeviceGetPowerUsage)
    bits = asked(nvml.nvmlDeviceGetCurrentClocksThrottleReasons) or 0
    return GpuSample(
        index=index,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_bytes=None if memory is None else int(memory.total),
        temperature_c=asked(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        clock_mhz=asked(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        most_clock_mhz=asked(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        power_w=None if power_mw is None else power_mw / 1000,
        ecc_corrected=asked(nvml.nvmlDeviceGetTotalEccErrors, _CORRECTED, _VOLATILE),
        ecc_uncorrected=asked(nvml.nvmlDeviceGetTotalEccErrors, _UNCORRECTED, _VOLATILE),
        throttled=tuple(words for bit, words in _REASONS.items() if bits & bit),
    )
