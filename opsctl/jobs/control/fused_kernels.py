"""Return whether kernels are built for a run's GPUs, before a job of it waits for nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from opsctl.run.config.expanded import ExpandedRun
from opsctl.run.config.schema import RunFile
from opsctl.run.environments.query import printed_by_module
from trainer.formats.attempt.kernels import KernelCache
from trainer.formats.tolerant import decode

_SWITCH = "--abort-on-unmet-fused-kernel-constraints"
#: What [slurm] asks for -> compute capability.
_CAPABILITIES = ((r"(?<![a-z])v100", "7.0"), (r"(?<![a-z])a100", "8.0"), (r"(?<![a-z])h[12]00", "9.0"))


class _Printed(msgspec.Struct, frozen=True):
    kernels: KernelCache


@dataclass(frozen=True)
class GpuKernels:
    """The compiled kernels for the GPUs that a run requests, in the run's Python."""

    capability: str  # "9.0"
    name: str  # of the artifact
    state: str  # `ok`, `missing` ...: as `opsctl kernels list` has it
    why: str
    folders: tuple[str, ...]

    @property
    def build(self) -> str:
        """The command that builds them."""
        return f"opsctl kernels build --arch={self.capability}"


def kernels_of_gpus(file: RunFile) -> GpuKernels | None:
    """Return the compiled kernels; None if only a node knows its GPUs, or the run's Python cannot be asked.

    Starts the run's Python, because the kernels must match its torch. `file` is the expanded run file.
    """
    capability = _capability(file)
    if capability is None:
        return None
    given = file.run.environment
    script = Path(given) if given else None
    words = ["trainer.kernels.native", "list", f"--arch={capability}", "--json"]
    printed = printed_by_module(script, file.env, words)
    listed = decode(printed.encode(), _Printed) if printed else None
    name = f"cuda-sm_{capability.replace('.', '')}"
    found = next((one for one in listed.kernels.artifacts if one.name == name), None) if listed else None
    if listed is None or found is None:
        return None
    return GpuKernels(capability, name, found.state, found.why, tuple(listed.kernels.folders))


def unbuilt_kernels(run: ExpandedRun) -> str | None:
    """Why its trainer would refuse at its start; None where it would not, or only a node can tell."""
    if not run.options.abort_on_unmet_fused_kernel_constraints:
        return None
    found = kernels_of_gpus(run.file)
    if found is None or found.state == "ok":
        return None
    why = f" ({found.why})" if found.why else ""
    return f"{_SWITCH}: {found.name} is {found.state} in {', '.join(found.folders)}{why}: {found.build}"


def _capability(file: RunFile) -> str | None:
    asked = " ".join(filter(None, (file.slurm.gpu_type, file.slurm.constraint)))
    found = (capability for name, capability in _CAPABILITIES if re.search(name, asked, re.IGNORECASE))
    return next(found, None)
