"""Where the kernel has mounted what, by its own table: nothing is touched, so nothing can hang."""

from __future__ import annotations

import contextlib
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")


def mount_points() -> list[str]:
    """Every mount point, as the kernel names it; empty where that cannot be read."""
    with contextlib.suppress(OSError):
        table = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        return [_unescaped(line.split(" ", 5)[4]) for line in table.splitlines()]
    return []


def mount_point_of(folder: Path) -> str:
    """Where the file system of `folder` is mounted, by its name as it is written: no link is followed."""
    return max((one for one in mount_points() if folder.is_relative_to(one)), key=len, default="/")


def mounted_under(folder: str) -> dict[str, set[str]]:
    """folder -> names in it that something is mounted on, from `folder` (absolute, without links) on, as paths in it.

    What is mounted on `folder` itself is not among them.
    """
    found: dict[str, set[str]] = {}
    above = folder.rstrip("/") + "/"
    for point in mount_points():
        if point.startswith(above) and len(point) > len(above):
            place, _, name = point.removeprefix(above).rpartition("/")
            found.setdefault(place, set()).add(name)
    return found


def _unescaped(point: str) -> str:
    r"""The kernel writes blanks, tabs, line ends and backslashes as `\040` and the like."""
    for code in ("040", "011", "012", "134"):
        point = point.replace(f"\\{code}", chr(int(code, 8)))
    return point
