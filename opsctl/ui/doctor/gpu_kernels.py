"""The compiled kernels for the GPUs that a run requests."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from opsctl.run.config.schema import RunFile
from opsctl.run.environments.query import printed_by_module
from opsctl.ui.doctor.check import KernelsSeen
from trainer.formats.attempt.kernels import KernelCache
from trainer.formats.tolerant import decode

#: What [slurm] asks for -> compute capability.
_CAPABILITIES = ((r"(?<![a-z])v100", "7.0"), (r"(?<![a-z])a100", "8.0"), (r"(?<![a-z])h[12]00", "9.0"))


class _Printed(msgspec.Struct, frozen=True):
    kernels: KernelCache


def kernels_of_gpus(file: RunFile) -> KernelsSeen | None:
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
    build = f"opsctl kernels build --arch={capability}"
    return KernelsSeen(name, found.state, tuple(listed.kernels.folders), build)


def _capability(file: RunFile) -> str | None:
    asked = " ".join(filter(None, (file.slurm.gpu_type, file.slurm.constraint)))
    found = (capability for name, capability in _CAPABILITIES if re.search(name, asked, re.IGNORECASE))
    return next(found, None)
