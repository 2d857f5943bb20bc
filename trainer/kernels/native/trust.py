"""Whether what is about to be loaded can only have been written by those whose code this user runs anyway."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path


def why_untrusted(cache: Path, path: Path) -> str | None:
    """Why somebody else can have written `path`, a file in the folder `cache`, or what leads to it; None: nobody can.

    Believed are this user, root, the cache folder's owner, and its group where its members may write to it: whoever
    names such a folder shares it. In a container that root is no user of (rootless Apptainer, enroot) the machine's own
    folders belong to the uid of all who are unknown there, which is believed above the cache and nowhere else. Raises
    OSError where there is nothing.
    """
    root = cache.stat()
    group = root.st_gid if root.st_mode & stat.S_IWGRP else None
    unknown = _uid_of_the_unknown()
    for one, found, is_above in _on_the_way(cache, path):
        is_unknown = unknown is not None and found.st_uid == unknown
        if not (is_above and is_unknown) and not _is_believed(found.st_uid, root.st_uid, group):
            known = ", who is somebody unknown in this container" if is_unknown else ""
            return f"{one} belongs to {_account(found.st_uid)}{known}"
        if stat.S_ISLNK(found.st_mode):
            continue
        is_sticky_folder = bool(found.st_mode & stat.S_ISVTX) and stat.S_ISDIR(found.st_mode) and one != path.parent
        if is_unknown and not is_above:
            is_sticky_folder = False  # what others make in it cannot be told from its owner's
        if found.st_mode & stat.S_IWOTH and not is_sticky_folder:
            return f"{one} can be written by everybody"
        if found.st_mode & stat.S_IWGRP and not is_sticky_folder and not _is_shared_with(found, group):
            return f"{one} can be written by the group {_group(found.st_gid)}"
    return None


def _on_the_way(cache: Path, path: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Each with whether it lies above the cache."""
    above = {*cache.parents, *cache.resolve().parents}
    for one in (path, *path.parents, *cache.resolve().parents):
        yield one, one.lstat(), one in above


def _uid_of_the_unknown() -> int | None:
    """Whose everything is that belongs to users whom this user namespace lacks; None where it has root."""
    try:
        rows = [line.split() for line in Path("/proc/self/uid_map").read_text(encoding="utf-8").splitlines()]
        if any(int(outside) == 0 for _, outside, _ in rows):
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _is_believed(uid: int, owner: int, group: int | None) -> bool:
    return uid in (0, os.geteuid(), owner) or (group is not None and _is_member(uid, group))


def _is_shared_with(found: os.stat_result, group: int | None) -> bool:
    return found.st_gid == group or _has_one_member(found.st_gid, found.st_uid)


def _is_member(uid: int, gid: int) -> bool:
    try:
        account = pwd.getpwuid(uid)
        return gid in os.getgrouplist(account.pw_name, account.pw_gid)
    except (KeyError, OSError):
        return False


def _has_one_member(gid: int, uid: int) -> bool:
    """Where everybody's umask is 002, what people make is writable by a group that only they are in."""
    try:
        found = grp.getgrgid(gid)
        owner = pwd.getpwuid(uid)
    except KeyError:
        return False
    return found.gr_name == owner.pw_name and set(found.gr_mem) <= {owner.pw_name}


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
