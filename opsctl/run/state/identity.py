"""The identity of a run: its id, its folder and its cluster together.

The id alone is a file, and files can be copied. `identity.json` next to it names the folder it was made for, so that
copied and moved folders are recognised. The cluster is in `chosen_cluster`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import make_folder, read_state, read_text, remove, write_atomically, write_state
from opsctl.core.files.trusted import opened_folder
from opsctl.run.config.paths import RunPaths

#: What a copy brings along of the run that it is a copy of: whose jobs, attempts and switch those are. The id is last,
#: so that what a kill leaves while they are set aside is still a copy.
OF_THE_ORIGINAL = (
    "cluster.json",
    "chains.jsonl",
    "cancels.jsonl",
    "submitting.json",
    "attempts.jsonl",
    "lease.jsonl",
    "kill-switch.json",
    "kill-switch.jsonl",
    "run-id",
    "identity.json",
)


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """`.opsctl/identity.json`: which folder has the id."""

    schema_version: int = 1
    id: str
    folder: str  # the run's output folder, absolute
    inode: int | None = None  # of that folder; its device's number is not the same on two hosts
    was: str = ""  # the folder that the run was moved from last


class Standing(Enum):
    """The relation of a run's folder to the one that its id was made for."""

    SAME = "same"
    UNBOUND = "unbound"  # nothing says which folder that was
    MOVED = "moved"
    COPY = "copy"
    UNCLEAR = "unclear"  # a copy or moved, which cannot be told from here


@dataclass(frozen=True)
class There:
    """The state of the place where the id's folder was."""

    exists: bool
    is_seen: bool = True  # False: that host has no such disk, or we may not look
    is_here: bool = False  # the very folder that is looked at, by another name
    id: str | None = None


@dataclass(frozen=True)
class Place:
    """A run's standing, and the folder that its id was made for."""

    standing: Standing
    was: Path | None = None

    @property
    def is_another_runs(self) -> bool:
        """Return whether the records here belong to another run, so its jobs are not ours."""
        return self.standing is Standing.COPY

    def describe(self) -> str:
        """Return a clause about the folder; empty for a run that was not moved."""
        said = {
            Standing.MOVED: f"moved here from {self.was}",
            Standing.COPY: f"a copy of {self.was}: the jobs and attempts of that are not this one's",
            Standing.UNCLEAR: f"either moved from {self.was} or a copy of it: this host cannot see which",
        }
        return said.get(self.standing, "")


def judged(identity: Identity | None, here: Path, inode: int | None, there: There) -> Place:
    """Return how the folder `here` relates to the one that `identity` names. inode: of `here`, None if new. Pure."""
    if identity is None:
        return Place(Standing.UNBOUND)
    was = Path(identity.folder)
    if was == here or there.is_here:
        return Place(Standing.SAME, was)
    is_the_one = inode is not None and inode == identity.inode
    is_told = is_the_one or there.is_seen or identity.inode is None
    if there.exists and there.id == identity.id:
        return Place(Standing.UNCLEAR if is_the_one else Standing.COPY, was)
    return Place(Standing.MOVED if is_told else Standing.UNCLEAR, was)


def place_of(paths: RunPaths) -> Place:
    """Return the present place of the run's folder. An unreadable identity counts as none."""
    identity = _read(paths)
    try:
        inode = paths.output.stat().st_ino
    except OSError:
        return Place(Standing.UNBOUND)
    return judged(identity, paths.output, inode, _look(identity, paths.output))


def read_run_id(paths: RunPaths) -> str | None:
    """Return the run's id, also if only the identity has it; None before the first submit."""
    written = (read_text(paths.output, paths.run_id) or "").strip()
    if written:
        return written
    identity = _read(paths)
    return identity.id if identity else None


def is_same_run(one: tuple[str, str], own: tuple[str, str]) -> bool:
    """Return whether a place labelled (name, id) belongs to `own`; ids decide where the place has one."""
    (name, run_id), (own_name, own_id) = one, own
    return run_id == own_id if run_id else name == own_name


def make_run_id(paths: RunPaths) -> str:
    """Give the run its id. The caller holds the run's lock and has seen that there is none."""
    run_id = secrets.token_hex(8)
    bind(paths, run_id)
    return run_id


def bind(paths: RunPaths, run_id: str, was: str = "") -> None:
    """Record that this folder is the run of that id; `was`: from where it was moved. The caller holds the lock."""
    if (read_text(paths.output, paths.run_id) or "").strip() != run_id:
        write_atomically(paths.output, paths.run_id, run_id + "\n")
    _write(paths, run_id, paths.output, was)


def stands_for(paths: RunPaths, folder: Path) -> Place:
    """Return the place that the run being made in `paths` will have once its output folder is called `folder`."""
    identity = _read(paths)
    return judged(identity, folder, None, _look(identity, folder))


def take_over(paths: RunPaths, folder: Path) -> None:
    """Let the folder that is made in `paths`, and will be called `folder`, be the run of its records."""
    identity = _read(paths)
    if identity is not None:
        _write(paths, identity.id, folder, "" if Path(identity.folder) == folder else identity.folder)


def _write(paths: RunPaths, run_id: str, folder: Path, was: str) -> None:
    before, inode = _read(paths), paths.output.stat().st_ino
    identity = Identity(id=run_id, folder=str(folder), inode=inode, was=was or (before.was if before else ""))
    if before != identity:
        write_state(paths.output, paths.identity, identity)


def set_the_originals_aside(paths: RunPaths) -> Path:
    """Move what is the original's alone into a folder of its own, so that this is a run of its own."""
    run_id = "".join(one for one in read_run_id(paths) or "" if one.isascii() and one.isalnum())[:40]
    aside = paths.state / f"copied-from-{run_id or 'unknown'}"
    make_folder(paths.output, aside)
    with opened_folder(paths.output, paths.state) as (state, _), opened_folder(paths.output, aside) as (target, _):
        for name in OF_THE_ORIGINAL:
            with contextlib.suppress(FileNotFoundError):
                os.rename(name, name, src_dir_fd=state, dst_dir_fd=target)
    return aside


def forget_run_id(paths: RunPaths) -> None:
    """Take back what `make_run_id` gave."""
    for path in (paths.run_id, paths.identity):
        remove(paths.output, path)


def settle_identity(paths: RunPaths) -> str:
    """Make the records this folder's own before a write; returns what is news. A copy becomes a run of its own, a moved
    one stays the same. Raises OpsctlError where that is unclear.
    """
    place = place_of(paths)
    if place.standing is Standing.UNCLEAR:
        raise OpsctlError(
            f"{paths.output} was {place.was} once: {place.describe()}; if it is the same run, remove {paths.identity}, "
            f"if it is to be another, remove {paths.state}"
        )
    if place.standing is Standing.COPY:
        aside = set_the_originals_aside(paths)
        return f"{paths.output} is a copy of {place.was} and a separate run from now on; old records: {aside}"
    run_id, is_moved = read_run_id(paths), place.standing is Standing.MOVED
    if run_id is not None:
        bind(paths, run_id, str(place.was) if is_moved else "")
    return f"{paths.output} was moved from {place.was} and continues as the same run" if is_moved else ""


@contextlib.contextmanager
def settled_identity(paths: RunPaths) -> Iterator[tuple[str, ...]]:
    """`settle_identity`, and then something else: what is news is given, and said too where that is refused."""
    news = settle_identity(paths)
    try:
        yield (news,) if news else ()
    except OpsctlError as error:
        if news:
            raise type(error)(f"{error} ({news})") from None
        raise


def refuse_a_copy(paths: RunPaths, what: str) -> None:
    """Raise OpsctlError where `what`, in a copy, would be done to the jobs of the original."""
    place = place_of(paths)
    if place.standing in (Standing.COPY, Standing.UNCLEAR):
        raise OpsctlError(f"cannot {what}: {paths.output} is {place.describe()}; do it there")


def is_here(folder: str, paths: RunPaths) -> bool:
    """Return whether `folder` leads to the run's output folder, by any name."""
    return not folder or Path(folder) == paths.output or _is_same_folder(Path(folder), paths.output)


def before_the_move(paths: RunPaths) -> str:
    """Return the folder's path before it was moved, where tasks of older chains look; empty if it was not moved."""
    place = place_of(paths)
    if place.standing is Standing.MOVED:
        return str(place.was)
    identity = _read(paths)
    return identity.was if identity else ""


def _read(paths: RunPaths) -> Identity | None:
    found = read_state(paths.output, paths.identity, Identity)
    return found if found is not None and found.id and found.folder.startswith(os.sep) else None


def _look(identity: Identity | None, here: Path) -> There:
    if identity is None or Path(identity.folder) == here:
        return There(exists=True, is_here=True)
    was = Path(identity.folder)
    try:
        exists = os.path.lexists(was)
        if not exists:
            # Without the folder around it, a disk may be missing here and not the folder on it.
            return There(exists=False, is_seen=was.parent.is_dir())
        if _is_same_folder(was, here):
            return There(exists=True, is_here=True)
        return There(exists=True, id=read_run_id(RunPaths(was)))
    except (OSError, ValueError):
        return There(exists=True, is_seen=False)


def _is_same_folder(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False
