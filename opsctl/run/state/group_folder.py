"""The access to a folder, a run's output or the scheduler's: for the group that a file names, or only for its owner."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_name, group_name, membership_problem, unix_group
from opsctl.core.errors import OpsctlError, RunFileError
from opsctl.core.files.state_files import FULL_DISK, make_folder
from opsctl.core.files.trusted import kind_of
from opsctl.run.config.paths import RunPaths

#: Every member may create files here, which belong to the group again. No other user has access.
GROUP_FOLDER_MODE = 0o2770
OWNER_FOLDER_MODE = 0o700
#: How long a command waits for another submit, revise or cancel of the same run, in seconds.
LOCK_WAIT_S = 20.0


@dataclass(frozen=True)
class Kind:
    """The words for a kind of folder in messages."""

    what: str  # "a run's output folder"
    key: str  # of the setting that names it: "output"
    said_in: str  # the file and table with `group`: "the run file's [run]"
    opened_by: str  # the command with which its owner opens it


OUTPUT = Kind("a run's output folder", "output", "the run file's [run]", "opsctl kill-switch arm")
CRON = Kind("a cron folder", "[cron] folder", "the profile's [cron]", "opsctl cron start")


def open_output(paths: RunPaths, group: str | None) -> tuple[str, ...]:
    """Create the output folder and its state's, or reopen an own one: `group`'s or, with None, its owner's. Returns a
    warning when others lose access. Raises RunFileError, OpsctlError.
    """
    warnings = open_to(paths.output, group, OUTPUT)
    make_folder(paths.output, paths.state)
    return warnings


def open_to(folder: Path, group: str | None, kind: Kind) -> tuple[str, ...]:
    """`open_output` of any folder that may be shared, with nothing made in it."""
    problem = None if group is None else membership_problem(group, kind.said_in)
    if problem is not None:
        raise RunFileError(problem)
    gid = None if group is None else unix_group(group).gr_gid
    mode = OWNER_FOLDER_MODE if gid is None else GROUP_FOLDER_MODE
    warnings: tuple[str, ...] = ()
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(0o700)
    except FileExistsError:
        _refuse_what_another_points_there(folder, kind)
        found = folder.stat()
        if found.st_uid != os.geteuid():
            _refuse_what_is_closed(folder, found, group, gid, kind)
            return ()
        if stat.S_IMODE(found.st_mode) == mode and gid in (None, found.st_gid):
            return ()
        if gid is None:
            warnings = _say_what_is_closed(folder, found, kind)
    _settle(folder, mode, gid)
    return warnings


def is_open_to_group(folder: Path, group: str | None = None) -> bool:
    """Return whether `group` (None: the folder's own) may write in `folder`."""
    try:
        found = folder.stat()
    except OSError:
        return False
    is_open = bool(found.st_mode & stat.S_ISGID) and found.st_mode & 0o070 == 0o070
    return is_open and (group is None or found.st_gid == unix_group(group).gr_gid)


def way_in(folder: Path) -> str:
    """Return what the caller, who lacks access to `folder`, can do, and who can help."""
    try:
        found = folder.stat()
    except PermissionError:
        return way_in(folder.parent) if folder != folder.parent else "ask its owner for access"
    except OSError:
        return "ask its owner for access"
    owner = account_name(found.st_uid)
    if not found.st_mode & stat.S_IWGRP:
        return f"only {owner} may. For a group: set `group` under [run], then opsctl kill-switch arm"
    return membership_problem(group_name(found.st_gid)) or f"ask {owner}, the owner of the folder"


def refuse_who_cannot_enter(paths: RunPaths) -> None:
    """Raise OpsctlError, with what to do about it, when the caller may not look into the run's state."""
    try:
        paths.lock.stat()
    except PermissionError as error:
        raise OpsctlError(f"cannot look into {paths.output}: {error.strerror}; {way_in(paths.state)}") from None
    except OSError:
        return  # not there yet, or not a folder: later code reports this


def owner_of(path: Path) -> str:
    """Return the account that owns `path`; "its owner" if that cannot be seen."""
    try:
        return account_name(path.stat().st_uid)
    except OSError:
        return "its owner"


def _refuse_what_another_points_there(folder: Path, kind: Kind) -> None:
    """Refuse a link that another user put in the folder's place: it may lead to any folder of the caller."""
    found = folder.lstat()
    if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, os.geteuid()):
        owner = account_name(found.st_uid)
        raise OpsctlError(f"{folder} is a link of {owner}'s, so not opened: choose another {kind.key}")


def _refuse_what_is_closed(folder: Path, found: os.stat_result, group: str | None, gid: int | None, kind: Kind) -> None:
    if not stat.S_ISDIR(found.st_mode):
        raise OpsctlError(f"{folder} is {kind_of(found.st_mode)}, not {kind.what}: choose another {kind.key}")
    if gid is not None and os.geteuid() and not is_open_to_group(folder, group):
        owner = account_name(found.st_uid)
        raise OpsctlError(f"{folder} is not open to group {group}: {owner} can open it with {kind.opened_by}")


def _say_what_is_closed(folder: Path, found: os.stat_result, kind: Kind) -> tuple[str, ...]:
    """Return a warning for users with whom an older release, or the owner, had shared the folder."""
    others = [f"group {group_name(found.st_gid)}"] if found.st_mode & stat.S_IRWXG else []
    others += ["everybody else"] if found.st_mode & stat.S_IRWXO else []
    if not others:
        return ()
    file, _, table = kind.said_in.partition("'s ")
    said = f"{folder} was open to {' and '.join(others)} and is now only {account_name(found.st_uid)}'s"
    return (f'{said}: {file} names no group; write group = "NAME" under {table} to share it',)


def _settle(output: Path, mode: int, gid: int | None) -> None:
    """Give the folder, and what of the caller's is in it, this openness. No link is followed."""
    fd = os.open(output, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if gid is not None and os.fstat(fd).st_gid != gid:
            os.fchown(fd, -1, gid)
        os.fchmod(fd, mode)  # after the chown, which clears the setgid bit
        for _, folders, files, within in os.fwalk(".", dir_fd=fd):
            for name in (*folders, *files):
                with contextlib.suppress(OSError):  # a link, something gone or unreadable: not ours to open
                    _settle_entry(within, name, mode, gid)
    finally:
        os.close(fd)


def _settle_entry(within: int, name: str, mode: int, gid: int | None) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
    try:
        found = os.fstat(fd)
        is_folder, is_file = stat.S_ISDIR(found.st_mode), stat.S_ISREG(found.st_mode)
        # A file with a second name may be one of the caller's that lies elsewhere.
        if found.st_uid != os.geteuid() or not (is_folder or (is_file and found.st_nlink == 1)):
            return
        if gid is not None and found.st_gid != gid:
            os.fchown(fd, -1, gid)
        # A file keeps whether it is a program, and what its owner may not write the group may not either.
        owners = stat.S_IMODE(found.st_mode) & 0o700
        # Nor is another's to write what lies in a folder where everybody keeps his own.
        if is_folder and os.fstat(within).st_mode & stat.S_ISVTX:
            mode &= ~stat.S_IWGRP
        wanted = mode if is_folder else owners | (owners >> 3 & mode)
        os.fchmod(fd, wanted | (stat.S_IMODE(found.st_mode) & stat.S_ISVTX if is_folder else 0))
    finally:
        os.close(fd)


@contextlib.contextmanager
def explained_disk_errors(paths: RunPaths, undone: str = "nothing was submitted") -> Iterator[None]:
    """Turn a full disk, or a folder of another user, into one line with the place and what was not done."""
    try:
        yield
    except PermissionError as error:
        where = error.filename or paths.output
        raise OpsctlError(f"may not write {where}: permission denied; {way_in(paths.output)}") from None
    except OSError as error:
        full = FULL_DISK.get(error.errno or 0)
        if not full:
            raise
        raise OpsctlError(f"{full} at {paths.output}: {undone}; free some space and try again") from None
