"""The description of a node: processors, memory, software, and its GPUs' reports."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainer.launcher.probing.parts import Tell

_PACKAGES = ("opsctl", "torch", "numpy", "deepspeed", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12")
_DRIVER = Path("/proc/driver/nvidia/version")
#: Of NVML's bits why a clock is lower than it could be: hardware slowdown, its thermal part, the power brake.
_SLOWDOWN = 0x8 | 0x40 | 0x80


def describe(tell: Tell) -> None:
    """Processors, memory and versions. Asks no device."""
    tell("host", platform.node())
    tell("cpu", _of_file("/proc/cpuinfo", "model name") or platform.machine())
    tell("cores", os.cpu_count() or 0)
    tell("cores_ours", len(os.sched_getaffinity(0)))
    tell("memory_mib", int((_of_file("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 1024)
    tell("kernel", platform.release())
    tell("python", platform.python_version())
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            tell(name, importlib.metadata.version(name))
    with contextlib.suppress(OSError):
        tell("driver", next((word for word in _DRIVER.read_text(encoding="utf-8").split() if word[:1].isdigit()), "?"))
    tell("gpu_devices", len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name[6:].isdigit()]))


def describe_gpus(tell: Tell) -> None:
    """Report what NVIDIA's management library knows of each GPU: memory, errors, throttling, its link to the host.

    Reports nothing without a driver or binding (`nvidia-ml-py`).
    """
    try:
        import pynvml
    except ModuleNotFoundError:
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    tell("count", pynvml.nvmlDeviceGetCount())
    for number in range(pynvml.nvmlDeviceGetCount()):
        _describe_gpu(tell, pynvml, number)


def _describe_gpu(tell: Tell, nvml: Any, number: int) -> None:
    """Each question by itself: not every GPU answers all of them."""
    handle = nvml.nvmlDeviceGetHandleByIndex(number)

    def memory_used_mib() -> float:
        return float(nvml.nvmlDeviceGetMemoryInfo(handle).used) / (1 << 20)

    def remapping(which: int) -> float:
        return float(nvml.nvmlDeviceGetRemappedRows(handle)[which])

    def ecc_uncorrected() -> float:
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
        return float(nvml.nvmlDeviceGetTotalEccErrors(handle, *kinds))

    with contextlib.suppress(nvml.NVMLError):
        name = nvml.nvmlDeviceGetName(handle)
        tell("name", name.decode(errors="replace") if isinstance(name, bytes) else str(name), of=number)
    questions: dict[str, Callable[[], float]] = {
        "memory_used_mib": memory_used_mib,
        "ecc_uncorrected": ecc_uncorrected,
        "remap_pending": lambda: remapping(2),
        "remap_failed": lambda: remapping(3),
        "slowdown": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & _SLOWDOWN,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "pcie_width": lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "pcie_width_most": lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
    }
    for what, ask in questions.items():
        with contextlib.suppress(nvml.NVMLError):
            tell(what, ask(), of=number)


def _of_file(path: str, key: str) -> str:
    """Return the value of the first line of `path` that begins with `key`; empty if there is none."""
    with contextlib.suppress(OSError), Path(path).open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return ""
