"""The kill switch: a file whose presence makes a training save and leave, even another member's job.

It is stored in the run's output folder, and no record can move it. Its content tells who, when and why. Only its
presence counts, so `touch` triggers and `rm` deactivates. This module does not need Slurm.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.reserve import take_reserve, write_reserve
from opsctl.core.files.state_files import (
    FULL_DISK,
    append_state,
    create_state,
    make_folder,
    read_lines,
    read_state,
    remove,
    touch_new,
)
from opsctl.core.files.trusted import Untrusted, kind_of
from opsctl.core.output import printable
from opsctl.core.timestamps import iso, now, to_the_second
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.group_folder import is_open_to_group, open_output, owner_of, way_in
from trainer.formats.json_text import Moment

#: Longest content read. Other content does not matter: the file only has to exist.
_LARGEST_BYTES = 64 * 1024
#: Longest reason that is kept, and longest word of the file that is shown, in characters.
LONGEST_WORDS = 500
#: Room for a note with the longest reason, escaped as JSON.
RESERVE_BYTES = 8192


class Note(msgspec.Struct, frozen=True):
    """The content of the switch."""

    by: str = ""
    host: str = ""
    at: datetime | None = None  # a file written by hand may lack the zone
    why: str = ""


#: The content of the reserve until it is used, and after that on a disk too full to change it.
_OF_NOBODY = Note(by="an unknown user", why="on a full disk, where user and reason could not be written")


@dataclass(frozen=True)
class KillSwitchState:
    """The state of a run's kill switch according to the file system."""

    path: Path
    is_armed: bool  # a group can create the file
    is_triggered: bool
    by: str = ""  # who triggered it; the owner of what is there when that does not say
    host: str = ""
    at: datetime | None = None
    why: str = ""
    kind: str = ""  # what is there, in words; empty for a file
    owner: str = ""  # whose folder it is in; empty where there is none

    def describe(self) -> str:
        """Return who, when and why in a few words; empty when it is not triggered."""
        if not self.is_triggered:
            return ""
        when = f" at {iso(self.at)}" if self.at else ""
        kind = f" ({self.kind} is in its place, which counts)" if self.kind else ""
        return f"by {self.by or 'a user'}{when}{kind}" + (f": {self.why}" if self.why else "")

    def readiness(self) -> str:
        """Return who could trigger it, in a few words."""
        if self.is_armed:
            return "every group member can trigger it"
        return f"only {self.owner} can trigger it" if self.owner else "no output folder yet"


class PrintedLooker(msgspec.Struct, frozen=True):
    """A live job, which looks at a kill switch."""

    job: Annotated[str, Meta(description="The job as squeue shows it.")]
    looks_at: Annotated[str, Meta(description="Path of the switch that it checks, as of its start.")]
    sees_it: Annotated[bool, Meta(description="True if that is this run's switch, also after the folder was moved.")]
    said: Annotated[str | None, Meta(description="Its word; null when there was none in time.")]


class PrintedKillSwitch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run's kill switch; who, when and why are null while it is not triggered and where its file does not say."""

    path: Annotated[str, Meta(description="Absolute path of the file.")]
    armed: Annotated[bool, Meta(description="True if a group can create the file.")]
    triggered: Annotated[bool, Meta(description="True if the file, or anything else of that name, exists.")]
    by: Annotated[str | None, Meta(description="User who triggered it; the owner of the file if the file names none.")]
    host: Annotated[str | None, Meta(description="Host on which it was triggered.")]
    at: Annotated[Moment | None, Meta(description="When they did.")]
    why: Annotated[str | None, Meta(description="Why they did.")]
    story: Annotated[str | None, Meta(description="User, time and reason in one line.")]
    changed: Annotated[
        bool | None, Meta(description="True if this command changed it; null for a command that only checks it.")
    ] = None
    live: Annotated[
        tuple[PrintedLooker, ...] | None, Meta(description="The live jobs with their answers; only for `trigger`.")
    ] = None


def printed_switch(
    state: KillSwitchState, changed: bool | None = None, live: tuple[PrintedLooker, ...] | None = None
) -> PrintedKillSwitch:
    """Return `state` for programs. `changed`: whether it is new; None if nothing was tried. `live`: only of
    `trigger`.
    """
    return PrintedKillSwitch(
        path=str(state.path),
        armed=state.is_armed,
        triggered=state.is_triggered,
        by=state.by or None,
        host=state.host or None,
        at=to_the_second(state.at),
        why=state.why or None,
        story=state.describe() or None,
        changed=changed,
        live=live,
    )


@dataclass(frozen=True)
class Change:
    """The effect of a command: the resulting state, and whether it is new."""

    state: KillSwitchState
    changed: bool


def is_triggered(path: Path) -> bool:
    """Return whether anything is at `path`. Raises OpsctlError if that cannot be seen, which must not count as "no"."""
    return _found(path) is not None


def state(paths: RunPaths) -> KillSwitchState:
    """Return whether the switch is armed and triggered, and by whom. Raises OpsctlError if it cannot be seen."""
    path = paths.kill_switch
    found = _found(path)
    is_armed = is_open_to_group(paths.output)
    owner = owner_of(paths.output) if paths.output.exists() else ""
    if found is None:
        return KillSwitchState(path, is_armed, False, owner=owner)
    note = read_state(paths.output, path, Note, _LARGEST_BYTES) or Note()
    at = note.at or datetime.fromtimestamp(found.st_mtime, UTC)
    return KillSwitchState(
        path,
        is_armed,
        True,
        by=_words(note.by) or account_name(found.st_uid),
        host=_words(note.host),
        at=at.replace(tzinfo=UTC) if at.tzinfo is None else at,
        why=_words(note.why),
        kind="" if stat.S_ISREG(found.st_mode) else kind_of(found.st_mode),
        owner=owner,
    )


def arm(paths: RunPaths, group: str | None = None) -> Change:
    """Make the output folder, the group's if named, and the reserve. Raises RunFileError, OpsctlError."""
    before = group is not None and is_open_to_group(paths.output, group)
    open_output(paths, group)
    write_reserve(paths.output, paths.kill_switch_reserve, _OF_NOBODY, RESERVE_BYTES)
    return Change(state(paths), group is not None and not before)


def trigger(paths: RunPaths, why: str = "") -> Change:
    """Create the switch with who, when and why. Whatever is there already stays. Raises OpsctlError."""
    note = Note(account_name(), socket.gethostname(), now().replace(microsecond=0), _words(why))
    changed = _create(paths, note)
    return Change(state(paths), changed)


def _create(paths: RunPaths, note: Note) -> bool:
    path = paths.kill_switch
    try:
        changed = create_state(paths.output, path, note)
    except FileNotFoundError:
        raise OpsctlError(f"no folder {path.parent}: the run has no output yet, nothing can be killed there") from None
    except Untrusted:
        # An empty file in the folder that was named is no risk, and what stops a training must not wait for a chmod.
        try:
            return touch_new(path)
        except OSError as found:
            raise OpsctlError(f"cannot create {path}: {found.strerror}; {way_in(path.parent)}") from None
    except PermissionError:
        raise OpsctlError(f"may not create {path}: permission denied; {way_in(path.parent)}") from None
    except OSError as error:
        return _create_on_a_full_disk(paths, note, error)
    there = _found(path)
    if changed and there is not None and not there.st_size:
        # It counts already; the reserve can also say who and why.
        _use_reserve(paths, note)
    return changed


def _create_on_a_full_disk(paths: RunPaths, note: Note, error: OSError) -> bool:
    """With no room for a file, the reserve becomes the switch. Raises OpsctlError naming what failed."""
    path, failed = paths.kill_switch, _use_reserve(paths, note)
    if failed is None:
        return True
    if is_triggered(path):  # by another process, which was faster
        return False
    reason = FULL_DISK.get(error.errno or 0) or error.strerror
    reserve = FULL_DISK.get(failed.errno or 0) or failed.strerror
    raise OpsctlError(
        f"cannot create {path}: {reason}, nor rename {paths.kill_switch_reserve} to it: {reserve}; "
        "remove any file there and trigger again, or ask a member with free quota to do it"
    )


def _use_reserve(paths: RunPaths, note: Note) -> OSError | None:
    try:
        take_reserve(paths.output, paths.kill_switch_reserve, paths.kill_switch, note)
    except OSError as error:
        return error
    return None


def deactivate(paths: RunPaths) -> Change:
    """Remove the switch, a link itself too; returns what it was. Raises OpsctlError, also for a folder."""
    before = state(paths)
    try:
        changed = remove(paths.output, before.path)
    except IsADirectoryError:
        raise OpsctlError(
            f"{before.path} is a folder, which counts as triggered, and not a kill switch: remove it by hand"
        ) from None
    except Untrusted as error:
        raise OpsctlError(f"may not remove {before.path}: {error.filename} {error.strerror}") from None
    except PermissionError:
        raise OpsctlError(f"may not remove {before.path}: permission denied; {way_in(paths.output)}") from None
    if changed:
        with contextlib.suppress(OSError):  # next time is soon enough where there is no room again
            write_reserve(paths.output, paths.kill_switch_reserve, _OF_NOBODY, RESERVE_BYTES)
    return Change(before, changed)


def _found(path: Path) -> os.stat_result | None:
    """Return what is at `path` itself, even a dangling link; None for nothing. Raises OpsctlError as `is_triggered`."""
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise OpsctlError(f"cannot check the kill switch {path}: {error.strerror}; {way_in(path.parent)}") from None


def _words(text: str) -> str:
    """One printable line that fits a screen: the file may hold anything, and so may what is typed."""
    cut = text if len(text) <= LONGEST_WORDS else text[: LONGEST_WORDS - 3] + "..."
    return printable(cut, " ").strip()


class Deactivation(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    at: Moment
    by: str = ""
    host: str = ""
    triggered_by: str = ""
    triggered_at: Moment | None = None  # a file written by hand may lack it
    triggered_why: str = ""


def record_deactivation(paths: RunPaths, was: KillSwitchState) -> None:
    """Write down that this account has removed the switch as it `was`. Raises OSError."""
    done = Deactivation(
        at=now().replace(microsecond=0),
        by=account_name(),
        host=socket.gethostname(),
        triggered_by=was.by,
        triggered_at=was.at.astimezone() if was.at else None,
        triggered_why=was.why,
    )
    make_folder(paths.output, paths.state)
    append_state(paths.output, paths.kill_switch_log, done)


def read_deactivations(paths: RunPaths) -> list[Deactivation]:
    """All on record, oldest first. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.kill_switch_log, Deactivation)
