"""The memory of this host, and the limit of the control groups around this process."""

from __future__ import annotations

import contextlib
from pathlib import Path

_MEMINFO, _OWN_CGROUP, _CGROUPS = Path("/proc/meminfo"), Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
#: Version 1 writes about this much where there is no limit.
_NO_LIMIT_BYTES = 1 << 60
#: (file of the limit, file of what is used, file of counters, what of these is page cache), version 2 and version 1.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def memory_lines(path: Path = _MEMINFO) -> dict[str, int]:
    """Return /proc/meminfo in bytes; empty if there is none."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text(encoding="utf-8").splitlines():
            name, _, rest = line.partition(":")
            words = rest.split()
            if words and words[0].isdecimal():
                found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def limit_of_cgroups(own: Path = _OWN_CGROUP, root: Path = _CGROUPS) -> tuple[int, int] | None:
    """Return (bytes allowed, bytes used) of the fullest control group around this process; None without a limit.

    Page cache that the kernel would give back at once is not counted as used.
    """
    found: list[tuple[int, int]] = []
    for folder, names in _groups(own, root):
        while folder != root and root in folder.parents:
            one = _limit(folder, *names)
            if one is not None:
                found.append(one)
            folder = folder.parent
    return max(found, key=lambda one: one[1] / one[0], default=None)


def _groups(own: Path, root: Path) -> list[tuple[Path, tuple[str, str, str]]]:
    groups: list[tuple[Path, tuple[str, str, str]]] = []
    with contextlib.suppress(OSError):
        for line in own.read_text(encoding="utf-8").splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            if not controllers:
                groups.append((root / path.lstrip("/"), _V2))
            elif "memory" in controllers.split(","):
                groups.append((root / "memory" / path.lstrip("/"), _V1))
    return groups


def _limit(folder: Path, most: str, used: str, cache: str) -> tuple[int, int] | None:
    try:
        allowed = (folder / most).read_text().strip()
        if not allowed.isdecimal() or not 0 < int(allowed) < _NO_LIMIT_BYTES:
            return None
        taken = int((folder / used).read_text())
        counters = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(allowed), max(0, taken - int(counters.get(cache, 0)))
    except (OSError, ValueError):
        return None
