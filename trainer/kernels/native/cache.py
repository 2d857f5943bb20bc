"""The folders of built artifacts: found by key, put in place complete.

`CACHE/NAME-KEY-COMPILER/` holds an artifact's files and `built.json`. Its contents never change: other sources, flags,
torch or compiler give another folder, so a process that has one open keeps it.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import hashlib
import json
import os
import pwd
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.core.files import be_as_open_as_its_folder, fsync, make_folder, read_plain
from trainer.kernels.native.artifacts import Artifact


def why_untrusted(cache: Path, path: Path) -> str | None:
    """Return why another user can have written `path`, a file in the folder `cache`, or its path; None if no user can.

    Trusted are this user, root, the cache folder's owner, and its group if its members may write to it: naming such a
    folder shares it. In a container without root's id (rootless Apptainer, enroot) the machine's own folders belong to
    the uid of all unknown users, which is trusted above the cache only. Raises OSError if there is nothing.
    """
    root = cache.stat()
    group = root.st_gid if root.st_mode & stat.S_IWGRP else None
    unknown = _uid_of_the_unknown()
    for one, found, is_above in _on_the_way(cache, path):
        is_unknown = unknown is not None and found.st_uid == unknown
        if not (is_above and is_unknown) and not _is_believed(found.st_uid, root.st_uid, group):
            known = ", who is unknown in this container" if is_unknown else ""
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
    """Yield each path component with its status, and True if it is above the cache."""
    above = {*cache.parents, *cache.resolve().parents}
    for one in (path, *path.parents, *cache.resolve().parents):
        yield one, one.lstat(), one in above


def _uid_of_the_unknown() -> int | None:
    """Return the uid that stands for users whom this user namespace lacks; None if it has root."""
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
    """Return whether a group has only this member: with umask 002, files are writable by such a group."""
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


CACHE_VARIABLE = "OPSCTL_KERNELS_CACHE"
_FACTS = "built.json"
_OR_ELSEWHERE = f"have that changed, or build into a folder of your own, named in {CACHE_VARIABLE}"
_LARGEST_FACTS = 4 << 20
#: Longer than any build takes: an unfinished folder of this age is abandoned.
_UNFINISHED_S = 7200


@dataclass(frozen=True)
class Built:
    """An artifact that is stored in a cache.

    compiler: name and version, CUDA's too. files: name -> SHA-256. kernels: name of a kernel -> its file, registers,
    bytes of shared memory and of spills; of cubins only.
    """

    name: str
    key: str
    compiler: str
    torch: str
    files: dict[str, str]
    kernels: dict[str, dict[str, Any]] = field(default_factory=dict)
    folder: Path = field(default=Path(), compare=False)


class CacheError(RuntimeError):
    """Something in a cache must not be used; the text says what and why."""


def cache_folders() -> tuple[Path, ...]:
    """Return the folders that are searched; the first is also built into.

    `$OPSCTL_KERNELS_CACHE`, several folders separated by colons, else `opsctl/kernels` in the user's cache. Raises
    CacheError for a missing home folder.
    """
    named = [one for one in os.environ.get(CACHE_VARIABLE, "").split(os.pathsep) if one]
    above = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    places = named or [f"{above}/opsctl/kernels"]
    try:
        return tuple(Path(one).expanduser() for one in places)
    except RuntimeError:
        said = f"{CACHE_VARIABLE}={':'.join(named)}" if named else f"{CACHE_VARIABLE} is not set"
        raise CacheError(f"{said}, and there is no such home folder: name a folder in {CACHE_VARIABLE}") from None


def is_empty() -> bool:
    """Return whether there is nothing at all, which is known without reading a source."""
    return not any(_folders_of(cache, "") for cache in cache_folders())


def find(artifact: Artifact) -> Built | None:
    """Return the build of these sources and settings, the newest of several compilers; None without one.

    Raises CacheError if other users could have written it, or it is damaged.
    """
    for cache in cache_folders():
        for folder in _folders_of(cache, f"{artifact.name}-{artifact.key}-"):
            return _read(cache, folder)
    return None


def find_by(artifact: Artifact, compiler: str) -> Built | None:
    """Return the build of this compiler, as `find`."""
    for cache in cache_folders():
        folder = cache / _folder_name(artifact, compiler)
        if folder.is_dir():
            return _read(cache, folder)
    return None


def others_of(name: str, key: str) -> list[Path]:
    """Return the folders of the same artifact with other sources or settings."""
    folders = [folder for cache in cache_folders() for folder in _folders_of(cache, f"{name}-")]
    rest = len(name) + 1
    return [one for one in folders if one.name[rest:].count("-") == 1 and one.name[rest:].partition("-")[0] != key]


def damaged_files(built: Built) -> list[str]:
    """Return the names of its files that are missing or changed since they were built."""
    return [name for name, digest in built.files.items() if _digest(built.folder / name) != digest]


def put(artifact: Artifact, compiler: str, torch: str, make: Callable[[Path], dict[str, dict[str, Any]]]) -> Built:
    """Have `make` write the artifact's files into a new folder, and put that into the cache whole.

    `make` gets the folder, and returns its kernels (see Built). If another process has built it meanwhile, theirs is
    taken. Raises CacheError before anything is made in a cache of which nothing would be loaded, OSError that names a
    file or the cache, and what `make` raises.
    """
    cache = cache_folders()[0]
    make_folder(cache)
    place = cache / _folder_name(artifact, compiler)
    for left in cache.glob(f".tmp-{artifact.name}-*"):  # of a build that was killed
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _UNFINISHED_S:
                shutil.rmtree(left, ignore_errors=True)
    beside = cache / f".tmp-{place.name}-{secrets.token_hex(8)}"
    try:
        beside.mkdir()
        # Every user of the cache may read this, whatever the umask; its contents never change.
        be_as_open_as_its_folder(beside, closed=True)
        _require_trusted(cache, beside)
        kernels = make(beside)
        names = sorted(one.name for one in beside.iterdir())
        built = Built(
            artifact.name, artifact.key, compiler, torch, {one: _digest(beside / one) or "" for one in names}, kernels
        )
        facts = {key: value for key, value in asdict(built).items() if key != "folder"}
        (beside / _FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
        for one in (*names, _FACTS):
            (beside / one).chmod(0o644)
            fsync(beside / one)
        fsync(beside)
        _put_in_place(beside, place)
    except OSError as error:
        raise OSError(error.errno, error.strerror, error.filename or str(cache)) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return _read(cache, place)


def _folder_name(artifact: Artifact, compiler: str) -> str:
    return f"{artifact.name}-{artifact.key}-{hashlib.sha256(compiler.encode()).hexdigest()[:8]}"


def _folders_of(cache: Path, beginning: str) -> list[Path]:
    """Return the folders whose names begin so, the newest first; none without a cache."""
    try:
        with os.scandir(cache) as entries:
            found = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if entry.name.startswith(beginning)]
    except OSError:
        return []
    return [cache / name for _, name in sorted(found, reverse=True)]


def _read(cache: Path, folder: Path) -> Built:
    try:
        facts = json.loads(read_plain(folder / _FACTS, _LARGEST_FACTS))
        built = Built(**facts, folder=folder)
        for name in (_FACTS, *built.files):
            _require_believed(cache, folder, folder / name)
    except PermissionError:
        raise CacheError(f"{folder} is not loaded: it cannot be read by this user: {_OR_ELSEWHERE}") from None
    except (OSError, ValueError, TypeError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise CacheError(f"{folder} is damaged ({said}): remove it and build again") from None
    return built


def _require_trusted(cache: Path, beside: Path) -> None:
    """Raise CacheError if the artifact to be built would not be loaded."""
    probe = beside / _FACTS
    probe.touch()
    probe.chmod(0o644)
    _require_believed(cache, cache, probe)
    probe.unlink()


def _require_believed(cache: Path, named: Path, path: Path) -> None:
    why = why_untrusted(cache, path)
    if why:
        raise CacheError(f"{named} is not loaded: {why}: {_OR_ELSEWHERE}")


def _put_in_place(beside: Path, place: Path) -> None:
    try:
        beside.rename(place)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return  # built by another process from the same sources and compiler
    fsync(place.parent)


def _digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
