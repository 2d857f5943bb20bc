"""The identity of a run: its id, its folder and its cluster together.

The id alone is a file, and files can be copied. `identity.json` next to it names the folder it was made for, so that
copied and moved folders are recognised. The cluster is in `chosen_cluster`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import make_folder, read_state, read_text, remove, write_atomically, write_state
from opsctl.core.files.trusted import opened_folder
from opsctl.run.config.paths import RunPaths

#: Of Linux's statx(2): what is asked for, and where in its answer of 256 bytes that stands.
_AT_FDCWD, _BORN = -100, 0x800
_ANSWER_BYTES, _MASK, _BORN_AT = 256, struct.Struct("=I"), (struct.Struct("=qI"), 80)


@dataclass(frozen=True)
class Mark:
    """The features that distinguish a folder on its file system, and stay when it is moved there."""

    inode: int
    born_ns: int | None = None  # None: this file system, or this C library, does not say

    def may_be(self, inode: int | None, born_ns: int | None) -> bool:
        """Return whether it may be this folder: the inode is the same, and no time of birth contradicts."""
        return self.inode == inode and (self.born_ns is None or born_ns is None or self.born_ns == born_ns)


def mark_of_folder(folder: Path) -> Mark:
    """Return the folder's mark. Raises OSError."""
    return Mark(folder.stat().st_ino, _born_ns(folder))


def _born_ns(folder: Path) -> int | None:
    """When it was made, nanoseconds since 1970. Python's own stat does not tell before 3.15."""
    import ctypes  # hardly a command needs it

    answer = ctypes.create_string_buffer(_ANSWER_BYTES)
    try:
        failed = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(folder), 0, ctypes.c_uint(_BORN), answer)
    except (AttributeError, OSError):  # glibc before 2.28
        return None
    if failed or not _MASK.unpack_from(answer)[0] & _BORN:
        return None
    whole, at = _BORN_AT
    seconds, nanoseconds = whole.unpack_from(answer, at)
    return seconds * 10**9 + nanoseconds or None


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
    born_ns: int | None = None  # when it was made, where its file system says: a removed one's inode is given to others
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
            Standing.UNCLEAR: f"either moved from {self.was} or a copy of it, which cannot be told from here",
        }
        return said.get(self.standing, "")


def judged(identity: Identity | None, here: Path, mark: Mark | None, there: There) -> Place:
    """Return how the folder `here` relates to the one that `identity` names. mark: of `here`, None if new. Pure."""
    if identity is None:
        return Place(Standing.UNBOUND)
    was = Path(identity.folder)
    if was == here or there.is_here:
        return Place(Standing.SAME, was)
    is_the_one = mark is not None and mark.may_be(identity.inode, identity.born_ns)
    is_told = is_the_one or there.is_seen or identity.inode is None
    if there.exists and there.id == identity.id:
        return Place(Standing.UNCLEAR if is_the_one else Standing.COPY, was)
    return Place(Standing.MOVED if is_told else Standing.UNCLEAR, was)


def place_of(paths: RunPaths) -> Place:
    """Return the present place of the run's folder. An unreadable identity counts as none."""
    identity = _read(paths) or _published(paths)
    try:
        paths.output.stat()
        if identity is None or Path(identity.folder) == paths.output:
            return judged(identity, paths.output, None, There(exists=True, is_here=True))
        mark = mark_of_folder(paths.output)
    except OSError:
        return Place(Standing.UNBOUND)
    return judged(identity, paths.output, mark, _look(Path(identity.folder), paths.output))


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
    """Write down that this folder is the run of that id; `was`: from where it was moved. The caller holds the lock."""
    if (read_text(paths.output, paths.run_id) or "").strip() != run_id:
        write_atomically(paths.output, paths.run_id, run_id + "\n")
    before, mark = _read(paths), mark_of_folder(paths.output)
    if before and before.folder == str(paths.output) and mark == Mark(before.inode or 0):
        mark = Mark(mark.inode, before.born_ns)  # of two hosts that have it mounted, one may not be told
    identity = Identity(
        id=run_id,
        folder=str(paths.output),
        inode=mark.inode,
        born_ns=mark.born_ns,
        was=was or (before.was if before else ""),
    )
    if before != identity:
        write_state(paths.output, paths.identity, identity)


def stands_for(paths: RunPaths, folder: Path) -> Place:
    """Return the place that the run being made in `paths` will have once its output folder is called `folder`."""
    identity = _read(paths)
    if identity is None or Path(identity.folder) == folder:
        return Place(Standing.UNBOUND if identity is None else Standing.SAME, folder)
    return judged(identity, folder, None, _look(Path(identity.folder), folder))


def take_over(paths: RunPaths, folder: Path) -> None:
    """Let what is being made in `paths`, and will be called `folder`, be the run that its records are of."""
    identity = _read(paths)
    if identity is not None:
        was = "" if Path(identity.folder) == folder else identity.folder
        mark = mark_of_folder(paths.output)
        value = Identity(
            id=identity.id, folder=str(folder), inode=mark.inode, born_ns=mark.born_ns, was=was or identity.was
        )
        write_state(paths.output, paths.identity, value)


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
        return f"{paths.output} is a copy of {place.was} and from now on a run of its own; the records of that: {aside}"
    run_id, is_moved = read_run_id(paths), place.standing is Standing.MOVED
    if run_id is not None:
        bind(paths, run_id, str(place.was) if is_moved else "")
    return f"{paths.output} was {place.was} and goes on as the same run" if is_moved else ""


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


def _published(paths: RunPaths) -> Identity | None:
    """Return the identity according to an earlier release: the output folder of the newest revision."""
    # Hardly a run needs this, and every command that looks would load all that a revision is made of.
    from opsctl.run.state.revisions import newest_whole

    try:
        run_id, revision = read_run_id(paths), newest_whole(paths)
        if run_id and revision:
            return Identity(id=run_id, folder=revision.file.run.output)
    except (OSError, OpsctlError):
        pass
    return None


def _read(paths: RunPaths) -> Identity | None:
    found = read_state(paths.output, paths.identity, Identity)
    return found if found is not None and found.id and found.folder.startswith(os.sep) else None


def _look(was: Path, here: Path) -> There:
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
