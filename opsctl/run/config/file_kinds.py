"""The kinds of a run's files that go elsewhere: what each is called everywhere, and where it lies.

A kind's name is its key in `[hub]` and `[backup]` and its word on the command line. Loads nothing, so that a command
can name them before it loads anything.
"""

from __future__ import annotations

CHECKPOINTS = "checkpoints"
#: Kind -> its folder under the output folder, which is its folder at a hub and in a backup too.
FOLDERS = {
    "logs": "logs",
    "tensorboard": "tensorboard",
    "carbon": "codecarbon",
    "report": "report",
    CHECKPOINTS: "checkpoints",
}
KINDS = tuple(FOLDERS)
#: Those that are files one by one, where a checkpoint is whole or is none.
KINDS_OF_FILES = tuple(kind for kind in KINDS if kind != CHECKPOINTS)


def kind_in(folder: str) -> str | None:
    """Return the kind of the files in a folder of that name; None for any other."""
    return next((kind for kind, its in FOLDERS.items() if its == folder), None)


def is_passing(name: str) -> bool:
    """Return whether a file of that name, without its folder, is a lock or is still being written.

    No copy has such a file. `.nfs*` is a file that was removed while a process of another host had it open.
    """
    return name.endswith((".lock", ".tmp", ".now")) or name.startswith((".room-", ".nfs"))
