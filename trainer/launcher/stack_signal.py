"""Having a process write the Python stacks of its threads into memory when a signal comes, also while it hangs in C.

The stacks go to a memory file, so that a file system that hangs, which may be what is looked for, keeps them from
nobody. Its name tells which rank it is of: whoever looks finds it among the process's descriptors, and signals only
processes that have one.
"""

from __future__ import annotations

import faulthandler
import os
import signal

#: Not SIGUSR1, with which Slurm warns of the time limit.
SIGNAL = signal.SIGUSR2
_NAME = "opsctl-stacks-of-rank-"
#: What /proc/PID/fd/N leads to, before the rank's number.
LINK = f"/memfd:{_NAME}"


def listen(rank: int) -> None:
    """Take SIGNAL as that wish from now on."""
    memory = os.memfd_create(f"{_NAME}{rank}")
    faulthandler.register(SIGNAL, file=memory, all_threads=True, chain=False)
