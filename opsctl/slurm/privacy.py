"""What a Slurm keeps from its users, as `scontrol show config` tells it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_UID = re.compile(r"\((\d+)\)$")


def hides_others_jobs(configuration: Mapping[str, str], uid: int) -> bool:
    """Whether the account `uid` is shown nobody's jobs but its own: PrivateData has jobs, and it is not Slurm's own.

    Slurm also shows all to root, and to its operators, which the configuration does not tell.
    """
    kept = {word.strip().lower() for word in configuration.get("PrivateData", "").split(",")}
    slurms = _UID.search(configuration.get("SlurmUser", ""))
    return "jobs" in kept and uid != 0 and (slurms is None or int(slurms[1]) != uid)
