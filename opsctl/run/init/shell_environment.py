"""Which variables a job has whatever its script says. Pure."""

from __future__ import annotations

import re

_EVERY_JOBS = re.compile(
    r"(?:SLURM|SLURMD|SRUN|SBATCH|CUDA|GPU|ROCR|HIP|NVIDIA|PMIX?|MODULE|LMOD|CONDA|XDG|LC|SSH|BASH)_?\w*"
    r"|HOME|USER|LOGNAME|PATH|MANPATH|LD_LIBRARY_PATH|HOST|HOSTNAME|HOSTTYPE|OSTYPE|MACHTYPE|PWD|OLDPWD|SHELL|SHLVL"
    r"|TMPDIR|TMP|TEMP|LANG|TERM|MAIL|EDITOR|UID|EUID|GROUPS|PPID|RANDOM|SECONDS|LINENO|OPTIND|FUNCNAME|_"
)


def is_every_jobs(name: str) -> bool:
    """Whether Slurm, the login or the shell may have set it: to what, nobody can tell."""
    return _EVERY_JOBS.fullmatch(name) is not None
