"""Folders and their file systems; what this host gives to processes."""

from __future__ import annotations

from opsctl.core.units import bytes_words
from opsctl.ui.doctor.check import Check, FolderSeen, HostSeen, Result, Seen, missing, ok, optional, unknown

#: How full is too full, and a home folder's least: caches and logins go there.
_FULL_PERCENT = 95.0
_HOME_BYTES = 1 << 30
_CLOCK_S = 5.0
_SHM_BYTES = 1 << 30
_OPEN_FILES = 4096
_PROCESSES = 4096


def _output(found: FolderSeen, seen: Seen) -> Result | None:
    if not found.is_there and found.owner:
        return missing(f"{found.path} is no folder", "move it away")
    if not found.is_writable:
        at = found.path if found.is_there else found.path.parent
        owner = found.owner or "its owner"
        return missing(f"you may not write {at}, which is {found.owner or 'another'}'s", f"ask {owner}")
    if not found.is_there:
        return ok(f"{found.path} can be made")
    group = None if seen.run is None else seen.run.run.group
    if group is not None and not (found.group == group and found.mode & 0o2070 == 0o2070):
        return missing(f"{found.path} is not open to {group}", "opsctl kill-switch arm, as its owner")
    return ok(f"{found.path}, mode {found.mode:04o} of {found.owner}, group {found.group}")


def _space(found: FolderSeen, _seen: Seen) -> Result | None:
    return _filled(found, "move or prune something: opsctl disk, opsctl checkpoints prune")


def _inodes(found: FolderSeen, _seen: Seen) -> Result | None:
    filled = found.filled
    if filled is None or not filled.limit_inodes or filled.used_inodes is None:
        return None
    percent = 100 * filled.used_inodes / filled.limit_inodes
    left = filled.limit_inodes - filled.used_inodes
    if percent > _FULL_PERCENT:
        return missing(
            f"{percent:.0f} % of the output's are used, {left:,} are left", "remove many small files; opsctl disk"
        )
    return ok(f"{left:,} are left")


def _filled(folder: FolderSeen, todo: str) -> Result | None:
    if folder.filled is None:
        return None
    filled = folder.filled
    if filled.problem or filled.used_bytes is None or not filled.limit_bytes:
        return unknown(filled.problem or f"the free space of {folder.path} is unknown")
    left, percent = filled.limit_bytes - filled.used_bytes, 100 * filled.used_bytes / filled.limit_bytes
    if percent > _FULL_PERCENT:
        return missing(f"{folder.path} is {percent:.0f} % full, {bytes_words(left)} are left", todo)
    return ok(f"{bytes_words(left)} are left at {folder.path}")


def _home(found: FolderSeen, _seen: Seen) -> Result | None:
    filled = found.filled
    if filled is not None and filled.limit_bytes and filled.used_bytes is not None:
        left = filled.limit_bytes - filled.used_bytes
        if left < _HOME_BYTES:
            todo = "export HF_HOME, PIP_CACHE_DIR and TORCH_EXTENSIONS_DIR elsewhere; du -s ~/.cache"
            return missing(f"{bytes_words(left)} are left at {found.path}, where caches go", todo)
    return _filled(found, "du -s ~/.cache")


def _locks(found: FolderSeen, _seen: Seen) -> Result | None:
    if not found.is_there:
        return None
    if found.has_locks is None:
        return optional(f"{found.file_system or 'that file system'} could not be tried without leaving a file")
    if not found.has_locks:
        todo = "have it mounted with locks (Lustre: flock); until then one person alone submits"
        return missing(
            f"{found.file_system} at {found.path} honours no locks: two submits at once are not kept apart", todo
        )
    return ok(f"{found.file_system} honours them")


def _clock(found: FolderSeen, _seen: Seen) -> Result | None:
    if not found.is_there:
        return None
    if found.skew_s is None:
        return optional(f"{found.file_system or 'that file system'} could not be tried without leaving a file")
    if abs(found.skew_s) > _CLOCK_S:
        return missing(
            f"the file server's clock is {found.skew_s:+.0f} s off this host's", "ask the site to set this host's clock"
        )
    return ok(f"the file server's and this host's differ by {abs(found.skew_s):.1f} s")


def _shm(found: HostSeen, _seen: Seen) -> Result | None:
    if found.shm_bytes is None:
        return missing("there is no /dev/shm, which ranks of a node talk through", "ask the site")
    said = f"{bytes_words(found.shm_bytes)} on {found.name}"
    if found.shm_bytes < _SHM_BYTES:
        return missing(
            f"{said}: NCCL needs more on nodes", "mount -o remount,size=50% /dev/shm, or --shm-size in a container"
        )
    return ok(said)


def _limits(found: HostSeen, _seen: Seen) -> Result | None:
    low = [
        f"{name} {found.limits[name]}"
        for name, least in (("open files", _OPEN_FILES), ("processes", _PROCESSES))
        if 0 <= found.limits.get(name, -1) < least
    ]
    if low:
        return optional(
            f"{', '.join(low)} is little for a node of a training; on nodes it may be more", "ulimit -n 65536 -u 65536"
        )
    return ok("open files and processes are enough")


def _gpus(found: HostSeen, _seen: Seen) -> Result | None:
    if found.driver:
        return ok(f"{found.gpus} with driver {found.driver} on {found.name}")
    if found.gpus:
        return missing(f"{found.gpus} devices and no driver on {found.name}", "ask the site")
    return optional(f"{found.name} has none; the nodes' GPUs were not checked")


CHECKS = (
    Check("output folder", "Is it there or can it be made, writable, and open to the run's group?", _output, "output"),
    Check("space", "Is there room where the run writes?", _space, "output"),
    Check("inodes", "May more files be made where the run writes?", _inodes, "output"),
    Check("locks", "Does the output's file system honour locks? A file without a name tries it.", _locks, "output"),
    Check("clock", "Do this host's clock and the file server's agree?", _clock, "output"),
    Check("home", "Is there room in the home folder, where caches go?", _home, "home"),
    Check("shared memory", "Is /dev/shm large enough for the ranks of a node?", _shm, "host"),
    Check("limits", "May a process open enough files, and start enough processes?", _limits, "host"),
    Check("gpus", "Are there GPUs here, with a driver?", _gpus, "host"),
)
