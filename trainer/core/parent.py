"""Processes that end with their parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """End this process, which multiprocessing started, when its parent ends: also by `kill -9`, or before this call."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it ended before the line above
        os._exit(1)
