"""Open files under a folder only if no outsider can have put them there.

Run folders are shared, and other users' runs are read. So a file is judged by what was opened, never by its name. From
the root on, every step uses a descriptor and follows no link. The path to the root is the caller's choice, links
included, but no other user may be able to replace the root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from opsctl.core.account import account_name, is_member, is_nobody_elses, unix_group

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: A FIFO must not block the reader, nor a terminal become ours.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: What opening says of what is no file, before it can be looked at.
_NOT_A_FILE = {errno.ELOOP: "a link", errno.ENXIO: "a FIFO or a socket", errno.EISDIR: "a folder"}


class Untrusted(OSError):
    """Something that cannot be what it is taken for; `strerror` says why, `filename` where."""

    def __init__(self, why: str, path: Path | str) -> None:
        super().__init__(errno.EPERM, why, str(path))


@dataclass(frozen=True)
class Keepers:
    """The accounts whose files under a root are trusted: the caller, root, the root's owner and its group's members."""

    owner: int
    group: int | None  # the root's, when its members may write there

    def include(self, uid: int) -> bool:
        """Return whether files of `uid` are trusted."""
        if uid in (os.geteuid(), 0, self.owner):
            return True
        return self.group is not None and is_member(uid, self.group)


#: Folders that this process has at work: name -> descriptor.
_AT_WORK: dict[Path, int] = {}


@contextlib.contextmanager
def at_work_in(root: Path) -> Iterator[None]:
    """Use the folder that `root` names now in all of this process, also after a move. Raises OSError."""
    with _named(root):
        fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    _AT_WORK[root] = fd
    try:
        yield
    finally:
        del _AT_WORK[root]
        os.close(fd)


def present_name(root: Path) -> Path:
    """Return the present name of the folder that is in use as `root`; `root` if this is unknown or another folder."""
    fd = _AT_WORK.get(root)
    if fd is not None:
        with contextlib.suppress(OSError):
            name = Path(f"/proc/self/fd/{fd}").readlink()
            if os.path.samestat(name.stat(), os.fstat(fd)):
                return name
    return root


@contextlib.contextmanager
def opened_folder(root: Path, folder: Path, make: bool = False) -> Iterator[tuple[int, Keepers]]:
    """Give a descriptor of `folder`, `root` or below, for `dir_fd`; make: create missing ones. Raises OSError."""
    if not folder.is_relative_to(root) or ".." in folder.relative_to(root).parts:
        raise Untrusted(f"is not in {root}", folder)
    fd = _open_root(root)
    try:
        keepers = _keepers(fd)
        reached = root
        for name in folder.relative_to(root).parts:
            reached = reached / name
            within, fd = fd, step_into(fd, name, reached, make)
            os.close(within)
            _judge_owner(os.fstat(fd), keepers, reached)
        yield fd, keepers
    finally:
        os.close(fd)


def open_file(root: Path, path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a trusted regular file under `root`; O_CREAT makes it. Raises OSError, Untrusted."""
    with opened_folder(root, path.parent) as (folder, keepers):
        return open_within(folder, keepers, path, flags)


def open_within(folder: int, keepers: Keepers, path: Path, flags: int = os.O_RDONLY) -> int:
    """`open_file` of `path.name` in a folder that is open already."""
    with _named(path):
        fd = _open_or_create(folder, path.name, flags)
    try:
        judge_file(os.fstat(fd), keepers, path)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def opened_file(root: Path, path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """`open_file`, closed at the end of the block."""
    fd = open_file(root, path, flags)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def readable(folder: int) -> Iterator[int]:
    """Give a descriptor that can list, sync and change an open folder, which `folder` itself may only name."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def names_in(folder: int, path: Path, most: int) -> list[str]:
    """Return the names in an open folder, sorted. Raises OSError; Untrusted for more than `most` of them."""
    with readable(folder) as fd, os.scandir(fd) as entries:
        names = sorted(entry.name for entry in islice(entries, most + 1))
    if len(names) > most:
        raise Untrusted(f"holds more than {most} files", path)
    return names


def create_file(folder: int, path: Path, mode: int | None = None) -> int:
    """Return a descriptor of a new file `path.name` in `folder`, as open as that. Raises FileExistsError."""
    with _named(path):
        fd = os.open(path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE, 0o600, dir_fd=folder)
        if mode is None:
            _open_as(fd, folder, 0o664)
        else:
            os.fchmod(fd, mode)  # whatever the caller's umask
    return fd


def listed_within(folder: int) -> list[str]:
    """Return the names in an open folder, in order. Raises OSError."""
    with readable(folder) as fd:
        return sorted(os.listdir(fd))  # noqa: PTH208 - a descriptor is no path


def new_file_mode(folder: int) -> int:
    """Return the mode of a new file in `folder`: as open as the folder, and never writable by all users."""
    return os.fstat(folder).st_mode & 0o664


def judge_file(found: os.stat_result, keepers: Keepers, path: Path) -> None:
    """Raise Untrusted unless this is one regular file that only the keepers can have written."""
    if not stat.S_ISREG(found.st_mode):
        raise Untrusted(f"is {kind_of(found.st_mode)} where a file is expected: remove it", path)
    if found.st_nlink > 1:
        raise Untrusted("has a second name somewhere (a hard link): remove it", path)
    _judge_owner(found, keepers, path)


def kind_of(mode: int) -> str:
    """Return the kind of a file in words."""
    kinds = (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((words for is_kind, words in kinds if is_kind(mode)), "a device")


def who_else_can_write(path: Path, group: int | None = None) -> str | None:
    """Return why others than root, the caller and `group` decide what is at `path`, which is run or loaded; else None.
    Raises OSError.
    """
    real = path.resolve(strict=True)
    for one, found in _on_the_way(path.absolute(), real):
        if not _may_decide(found.st_uid, group):
            return f"{one} belongs to {account_name(found.st_uid)}"
        is_sticky_folder = one != real and bool(found.st_mode & stat.S_ISVTX)
        if stat.S_ISLNK(found.st_mode) or is_sticky_folder:
            continue  # a link's mode means nothing, and in a sticky folder only owners rename
        if found.st_mode & stat.S_IWOTH or _other_group_can_write(found, group):
            return f"{one} can be written by others"
    return None


def _may_decide(uid: int, group: int | None) -> bool:
    """Return whether what `uid` wrote may run as the caller: root's, the caller's, or with `group` a member's."""
    return uid in (0, os.geteuid()) or (group is not None and is_member(uid, group))


def _other_group_can_write(found: os.stat_result, group: int | None) -> bool:
    # Where everybody's umask is 002, what people make is writable by a group that only they are in.
    return bool(found.st_mode & stat.S_IWGRP) and found.st_gid != group and not is_nobody_elses(found.st_gid)


def _on_the_way(*ways: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file, folder and link that absolute paths go through, links followed. Raises OSError."""
    todo, told = list(ways), set[Path]()
    while todo:
        place = todo.pop()
        for one in (place, *place.parents):
            if one not in told:
                told.add(one)
                found = one.lstat()
                yield one, found
                if stat.S_ISLNK(found.st_mode):
                    todo.append(one.parent / one.readlink())


def _open_root(root: Path) -> int:
    """Open the root, following the reader's links; refuse what any user can replace on the way."""
    with _named(root):
        at_work = _AT_WORK.get(root)
        fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) if at_work is None else os.dup(at_work)
    try:
        _judge_openness(os.fstat(fd), root)
        for above in present_name(root).resolve().parents:
            found = above.stat()
            if not found.st_mode & stat.S_ISVTX:
                _judge_openness(found, above)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _keepers(root: int) -> Keepers:
    found = os.fstat(root)
    return Keepers(found.st_uid, found.st_gid if found.st_mode & stat.S_IWGRP else None)


def step_into(within: int, name: str, path: Path, make: bool = False) -> int:
    """Return a descriptor of the folder `name` in `within`, not judged, through no link; make: create it if missing.

    path: of this folder, for errors. Raises OSError, Untrusted for what is no folder.
    """
    try:
        with _named(path):
            return os.open(name, _FOLDER, dir_fd=within)
    except FileNotFoundError:
        if not make:
            raise
        return _make_folder(within, name, path)
    except NotADirectoryError:
        with _named(path):
            found = os.stat(name, dir_fd=within, follow_symlinks=False)
        raise Untrusted(f"is {kind_of(found.st_mode)} where a folder is expected: remove it", path) from None


def _make_folder(within: int, name: str, path: Path) -> int:
    with _named(path):
        try:
            os.mkdir(name, 0o700, dir_fd=within)
            made = True
        except FileExistsError:
            made = False  # made by another process at this moment
        fd = os.open(name, _FOLDER, dir_fd=within)
        try:
            if made:
                _open_as(fd, within, ~0o002 & ~stat.S_ISVTX)
        except BaseException:
            os.close(fd)
            raise
        return fd


def _open_as(fd: int, folder: int, most: int) -> None:
    """Let those who may use `folder` use what was made in it; no other group gets the rights of the folder's group."""
    model, mode = os.fstat(folder), stat.S_IMODE(os.fstat(folder).st_mode) & most
    # There is no fchmod for a descriptor that only names; its path in /proc is that very file.
    place = Path(f"/proc/self/fd/{fd}")
    if os.fstat(fd).st_gid != model.st_gid:
        with contextlib.suppress(PermissionError):
            os.chown(place, -1, model.st_gid)
    if os.fstat(fd).st_gid != model.st_gid:
        mode &= ~0o2070
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        place.chmod(mode)


def _open_or_create(folder: int, name: str, flags: int) -> int:
    flags |= _FILE
    if not flags & os.O_CREAT:
        return os.open(name, flags, dir_fd=folder)
    mode = new_file_mode(folder)
    while True:
        try:
            fd = os.open(name, flags | os.O_EXCL, mode, dir_fd=folder)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):  # gone again: make it
                return os.open(name, flags & ~os.O_CREAT, dir_fd=folder)
            continue
        os.fchmod(fd, mode)
        return fd


def _judge_owner(found: os.stat_result, keepers: Keepers, path: Path) -> None:
    if not keepers.include(found.st_uid):
        owner, whose = account_name(found.st_uid), account_name(keepers.owner)
        who = f"{owner}, who is not one of those who share this folder of {whose}'s"
        raise Untrusted(f"belongs to {who}; if that account is gone, move it away", path)
    _judge_openness(found, path)


def _judge_openness(found: os.stat_result, path: Path) -> None:
    if found.st_mode & stat.S_IWOTH and found.st_mode & stat.S_ISVTX:
        raise Untrusted("is a folder that everybody writes into: make a folder of your own in it, and name that", path)
    if found.st_mode & stat.S_IWOTH:
        raise Untrusted("can be written by everybody: chmod o-w it", path)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors with the whole path, not only what stands after the descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_A_FILE:
            raise Untrusted(f"is {_NOT_A_FILE[error.errno]} where a file is expected: remove it", path) from None
        raise OSError(error.errno, error.strerror, str(path)) from None


#: More than any script that a person wrote.
LARGEST_PROGRAM_BYTES = 1 << 20


def read_program(root: Path, path: Path, group: str | None) -> str:
    """Return the text of the program `path` under `root`, which runs as the reader.

    It must belong to the reader or root or, with `group`, which the reader's profile names, to a member. No other user
    may be able to write it. The returned text is what runs, even if the file changes. Raises OSError: Untrusted,
    FileNotFoundError.
    """
    gid = None if group is None else unix_group(group).gr_gid
    with os.fdopen(open_file(root, path), "rb") as file:
        found = os.fstat(file.fileno())
        data = file.read(LARGEST_PROGRAM_BYTES + 1)
    if not _may_decide(found.st_uid, gid):
        owner = account_name(found.st_uid)
        raise Untrusted(
            f"belongs to {owner}, and would run as {account_name()}: only your own and your group's do", path
        )
    if _other_group_can_write(found, gid):
        raise Untrusted("can be written by a group that your profile does not name: chmod g-w it", path)
    if len(data) > LARGEST_PROGRAM_BYTES:
        raise Untrusted(f"holds more than {LARGEST_PROGRAM_BYTES} bytes", path)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Untrusted("is not UTF-8 text", path) from None
    if "\0" in text:
        raise Untrusted("has a zero byte in it: a program, not a script", path)
    return text


def names_of(root: Path, folder: Path, most: int) -> list[str]:
    """Return the names in a folder under `root`, sorted; none without such a folder. Raises OSError, Untrusted."""
    with contextlib.suppress(FileNotFoundError), opened_folder(root, folder) as (within, _):
        return names_in(within, folder, most)
    return []


def cache_place(name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the cache called `name`: `$XDG_CACHE_HOME/opsctl/NAME`. It may not exist."""
    cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or Path.home()) / ".cache"
    return Path(cache) / "opsctl" / name


def cache_folder(name: str, below: str = "", environment: Mapping[str, str] = os.environ) -> Path | None:
    """`cache_place`, or the folder `below` it, made if need be; None where that cannot be, or others could write it."""
    place = cache_place(name, environment)
    folder = place / below if below else place
    try:
        if not folder.is_dir():
            place.parent.parent.mkdir(parents=True, exist_ok=True)
            for one in (place.parent, place):
                one.mkdir(mode=0o700, exist_ok=True)
            if below:
                with opened_folder(place, folder, make=True):
                    pass
        return folder if is_the_accounts(folder) else None
    except OSError:
        return None


def is_the_accounts(folder: Path) -> bool:
    """Return whether this folder is the account's, closed to others and reached through no link. Raises OSError."""
    if any(one.is_symlink() for one in (folder, *folder.parents[:2])):
        return False  # ours are made as folders
    found = folder.stat()
    is_own = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return is_own and who_else_can_write(folder) is None
