"""Whether kernels that a training insists on are built for its GPUs, before a job of it waits for nodes."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from opsctl.environments.asking import printed_by_module
from opsctl.runs.expanded import ExpandedRun
from trainer.formats.kernels import KernelCache
from trainer.formats.tolerant import decode

_SWITCH = "--abort-on-unmet-fused-kernel-constraints"
#: What [slurm] asks for -> compute capability.
_CAPABILITIES = ((r"(?<![a-z])v100", "7.0"), (r"(?<![a-z])a100", "8.0"), (r"(?<![a-z])h[12]00", "9.0"))


class _Printed(msgspec.Struct, frozen=True):
    kernels: KernelCache


def unbuilt_kernels(run: ExpandedRun) -> str | None:
    """Why its trainer would refuse at its start; None where it would not, or only a node can tell.

    The run's own Python is asked, whose torch they have to be built beside.
    """
    if not run.options.abort_on_unmet_fused_kernel_constraints:
        return None
    capability = _capability(run)
    if capability is None:
        return None
    given = run.file.run.environment
    script = Path(given) if given else None
    words = ["trainer.native", "list", f"--arch={capability}", "--json"]
    printed = printed_by_module(script, run.file.env, words)
    listed = decode(printed.encode(), _Printed) if printed else None
    name = f"cuda-sm_{capability.replace('.', '')}"
    of_gpu = [one for one in listed.kernels.artifacts if one.name == name] if listed else []
    if not listed or not of_gpu or of_gpu[0].state == "ok":
        return None
    why = f" ({of_gpu[0].why})" if of_gpu[0].why else ""
    where = ", ".join(listed.kernels.folders)
    return f"{_SWITCH}: {name} is {of_gpu[0].state} in {where}{why}: opsctl kernels build --arch {capability}"


def _capability(run: ExpandedRun) -> str | None:
    asked = " ".join(filter(None, (run.file.slurm.gpu_type, run.file.slurm.constraint)))
    found = (capability for name, capability in _CAPABILITIES if re.search(name, asked, re.IGNORECASE))
    return next(found, None)
