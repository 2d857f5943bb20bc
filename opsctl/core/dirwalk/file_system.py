"""The use of a file system, measured in a separate process, so that one that hangs does not hang the caller."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.process import ask

_MOUNTS = Path("/proc/self/mountinfo")


def mount_points() -> list[str]:
    """Every mount point, as the kernel names it; empty where that cannot be read."""
    with contextlib.suppress(OSError):
        table = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
        return [_unescaped(line.split(" ", 5)[4]) for line in table.splitlines()]
    return []


def mount_point_of(folder: Path) -> str:
    """Return where the file system of `folder` is mounted, by its name as written: no link is followed."""
    return max((one for one in mount_points() if folder.is_relative_to(one)), key=len, default="/")


def mounted_under(folder: str) -> dict[str, set[str]]:
    """Return folder -> names in it that something is mounted on, below `folder` (absolute, without links)."""
    found: dict[str, set[str]] = {}
    above = folder.rstrip("/") + "/"
    for point in mount_points():
        if point.startswith(above) and len(point) > len(above):
            place, _, name = point.removeprefix(above).rpartition("/")
            found.setdefault(place, set()).add(name)
    return found


def _unescaped(point: str) -> str:
    r"""Decode a mount point. The kernel writes blanks, tabs, line ends and backslashes as `\040` and the like."""
    for code in ("040", "011", "012", "134"):
        point = point.replace(f"\\{code}", chr(int(code, 8)))
    return point


#: A file server that has not answered by then is taken for one that hangs.
TIMEOUT_S = 5.0
#: Names on a way to a folder: links may lead in a circle.
_LONGEST_WAY = 1000
#: coreutils: blocks, free ones, free ones for everybody, their size, inodes, free ones.
_FORM = "--format=%b %f %a %S %c %d"


@dataclass(frozen=True)
class Filled:
    """The use of a folder's file system, as df counts: space reserved for root is left out."""

    used_bytes: int | None = None
    limit_bytes: int | None = None
    used_inodes: int | None = None
    limit_inodes: int | None = None  # None, with those used: it has none to run out of
    problem: str = ""  # why it could not be looked at


class FileSystems:
    """The file systems of one look; one that hangs is waited for once."""

    def __init__(self) -> None:
        self._hanging: dict[str, str] = {}  # mount point -> why
        self._well: set[str] = set()

    def problem(self, folder: Path) -> str:
        """Return why nothing under `folder` may be touched; empty if all file systems on the way answer."""
        for place in _way_to(folder):
            mount = mount_point_of(place)
            if mount not in self._well and mount not in self._hanging:
                self.filled(Path(mount))
            if mount in self._hanging:
                return self._hanging[mount]
        return ""

    def filled(self, folder: Path) -> Filled:
        """Return the use of the file system of `folder`."""
        mount = mount_point_of(folder)
        if mount in self._hanging:
            return Filled(problem=self._hanging[mount])
        found = _filled(folder, TIMEOUT_S)
        if found is None:
            self._hanging[mount] = f"the file system at {mount} does not answer"
            return Filled(problem=self._hanging[mount])
        self._well.add(mount)
        return found


def refuse_what_hangs(*folders: Path) -> None:
    """Raise OpsctlError if a file system does not answer, because reading one of `folders` would hang."""
    systems = FileSystems()
    for folder in folders:
        if hangs := systems.problem(folder):
            raise OpsctlError(f"cannot look into {folder}: {hangs}")


def _way_to(folder: Path) -> Iterator[Path]:
    """Every place on the way to `folder` (absolute), through links too; none is touched before it is given."""
    place, names = Path("/"), list(reversed(folder.parts))
    for _ in range(_LONGEST_WAY):
        if not names:
            return
        name = names.pop()
        place = place.parent if name == ".." else place / name  # a link's own "/" leads there
        yield place
        with contextlib.suppress(OSError):  # no link
            names += reversed(place.readlink().parts)
            place = place.parent


def _filled(folder: Path, timeout_s: float) -> Filled | None:
    """None where no answer came in time."""
    said = ask(["stat", "--file-system", _FORM, "--", str(folder)], timeout_s)
    if said.is_hanging:
        return None
    numbers = [int(word) for word in said.out.split() if word.isdigit()]
    if said.problem or len(numbers) != 6:
        return Filled(problem=said.problem.rpartition(": ")[2] or "stat printed no result for it")
    blocks, free, available, size, inodes, free_inodes = numbers
    used_inodes = inodes - free_inodes
    return Filled(
        used_bytes=(blocks - free) * size,
        limit_bytes=(blocks - free + available) * size,
        used_inodes=used_inodes if inodes else None,
        limit_inodes=inodes or None,
    )
