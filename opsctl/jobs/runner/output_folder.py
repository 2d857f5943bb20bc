"""The output folder as a job holds it: whoever renames it moves what the running job writes with it."""

from __future__ import annotations

import os
from pathlib import Path

from opsctl.run.config.paths import RunPaths


class FollowedPaths(RunPaths):
    """The places of a run under a folder that is held open.

    They change only in `look`, so that two of them go together. Raises OSError when there is no such folder.
    """

    def __init__(self, output: Path) -> None:
        object.__setattr__(self, "_named", output)
        object.__setattr__(self, "_now", output)
        object.__setattr__(self, "_fd", os.open(output, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))

    @property
    def output(self) -> Path:
        """Its name at the last look."""
        now: Path = self.__dict__["_now"]
        return now

    def look(self) -> None:
        """See where the folder is: under the given name, else as the kernel calls it, else only as what is held."""
        named: Path = self.__dict__["_named"]
        fd: int = self.__dict__["_fd"]
        held, link = os.fstat(fd), Path(f"/proc/self/fd/{fd}")
        for path in (named, link.readlink()):
            try:
                if os.path.samestat(path.stat(), held):
                    break
            except OSError:
                continue  # moved by another host's hand, its name here is an old one
        else:
            path = link
        object.__setattr__(self, "_now", path)
