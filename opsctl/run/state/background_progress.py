"""The progress of a long command that runs as a Slurm job, so that a job without progress is not continued."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

#: Set for a command that is carried out by a background command's job: the file that it may tell its progress in.
PROGRESS_VARIABLE = "OPSCTL_ERRAND_PROGRESS"
#: Between two words of one command, seconds.
_PAUSE_S = 5.0
_told_at: dict[str, float] = {}


class CommandProgress(msgspec.Struct, frozen=True, kw_only=True):
    """`progress.json` of a background command."""

    done: int  # whatever the command counts, of this start: what no later start has to do again


def tell_progress(done: int) -> None:
    """Report that `done` units are finished in this start, at most every few seconds. Fails no command."""
    place = os.environ.get(PROGRESS_VARIABLE)
    if not place or done <= 0 or time.monotonic() - _told_at.get(place, -_PAUSE_S) < _PAUSE_S:
        return
    # Without a listener no trainer is imported: the working folder may contain a folder of that name.
    from opsctl.core.files.state_files import write_state

    _told_at[place] = time.monotonic()
    path = Path(place)
    with contextlib.suppress(OSError):
        write_state(path.parent, path, CommandProgress(done=done))


def command_at_work() -> str:
    """Return the name of the background job that this process is; empty if the command was typed."""
    place = os.environ.get(PROGRESS_VARIABLE)
    return Path(place).parent.name if place else ""
