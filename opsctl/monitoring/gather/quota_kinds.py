"""Quota programs that are known by name: what to call, and how to read what they print.

`lustre` (lfs quota), `gpfs` (mmlsquota), `quota` (Linux's own) and `idrquota` (IDRIS). Of a soft limit and a hard one
the soft one counts, for after its grace nothing can be written beyond it either; 0, `-` and `none` are no limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from opsctl.core.dirwalk.file_system import mount_point_of
from opsctl.monitoring.snapshot import Space

_KIB = 1024
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "k", "m", "g", "t", "p", "e"))}
#: A number, with a unit where people are meant to read it; `*`: above its limit; in brackets: not quite exact.
_AMOUNT = re.compile(r"\[?([0-9]+(?:\.[0-9]+)?)([kKmMgGtTpPeE]?)(?:i?[bB])?\]?(\*?)")
_NO_AMOUNT = ("-", "none", "unlimited")
_COLUMNS = 8  # used, soft, hard, grace; of bytes, then of files
_PERCENT = re.compile(r"\(\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*\)")
#: A grace that is told as the second when it ends, and not as how long it goes on.
_EPOCH_DIGITS = 9
_NO_GRACE = ("", "-", "none", "0")


@dataclass(frozen=True)
class Whose:
    """Whose quota is meant."""

    what: str  # "user", "group", "project"
    name: str


@dataclass(frozen=True)
class Kind:
    """One program, how it is called, and how it is read."""

    commands: Callable[[Whose, Sequence[Path]], list[list[str]]]
    read: Callable[[str, str, datetime], list[Space]]


def _lfs(whose: Whose, folders: Sequence[Path]) -> list[list[str]]:
    flag = {"user": "-u", "group": "-g", "project": "-p"}[whose.what]
    mounts = dict.fromkeys(mount_point_of(folder) for folder in folders)
    return [["lfs", "quota", flag, whose.name, mount] for mount in mounts]


def _mmlsquota(whose: Whose, _folders: Sequence[Path]) -> list[list[str]]:
    flag = {"user": "-u", "group": "-g", "project": "-j"}[whose.what]  # a project is a file set there
    return [["mmlsquota", "-Y", flag, whose.name]]


def _quota(whose: Whose, _folders: Sequence[Path]) -> list[list[str]]:
    flag = {"user": "--user", "group": "--group", "project": "--project"}[whose.what]
    # Without a raw grace the column is missing where none runs.
    return [["quota", "--no-wrap", "--raw-grace", "--show-mntpoint", "--hide-device", flag, whose.name]]


def _idrquota(whose: Whose, _folders: Sequence[Path]) -> list[list[str]]:
    if whose.what == "user":
        return [["idrquota", "-m"]]
    return [["idrquota", flag, "-p", whose.name] for flag in ("-w", "-s")]


def table(text: str, name: str, now: datetime) -> list[Space]:
    """What `lfs quota` and `quota` print: a file system, and two times used, soft and hard limit, grace.

    A long name of a file system stands on a line of its own.
    """
    found, before = [], ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == _COLUMNS and before:
            words = [before, *words]
        before = words[0] if len(words) == 1 else ""
        if len(words) == _COLUMNS + 1 and _is_amount(words[1]) and _is_amount(words[5]):
            found.append(_space(f"{name} on {words[0]}", now, words[1:5], words[5:9]))
    return found


def colons(text: str, name: str, now: datetime) -> list[Space]:
    """What `mmlsquota -Y` prints: a line of names, and one for each file system or file set, with colons between."""
    found, names = [], list[str]()
    for line in text.splitlines():
        fields = line.split(":")
        if "HEADER" in fields:
            names = fields
            continue
        row = {key: unquote(value) for key, value in zip(names, fields, strict=False)}
        keys = ("Usage", "Quota", "Limit", "Grace")
        blocks, files = ([row.get(f"{of}{key}", "") for key in keys] for of in ("block", "files"))
        if _is_amount(blocks[0]) and _is_amount(files[0]):
            where = "/".join(one for one in (row.get("filesystemName"), row.get("filesetname")) if one)
            found.append(_space(f"{name} on {where}", now, blocks, files))
    return found


def shares(text: str, name: str, now: datetime) -> list[Space]:
    """What `idrquota` prints: shares in brackets, of bytes and of inodes, each line with the name of its disk."""
    told: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        for match in _PERCENT.finditer(line):
            disk = re.match(r"\W*(\w+)\s*:", line)
            of_disk = told.setdefault(disk[1] if disk else "", {})
            is_inodes = "inode" in line.lower() or "percent" in of_disk
            of_disk.setdefault("inode_percent" if is_inodes else "percent", float(match[1]))
    return [
        Space(" on ".join(filter(None, (name, disk))), now, **shares_of, how="quota")  # type: ignore[arg-type]
        for disk, shares_of in told.items()
    ]


#: `[watch] quota` in a profile -> the program.
KINDS = {
    "lustre": Kind(_lfs, table),
    "gpfs": Kind(_mmlsquota, colons),
    "quota": Kind(_quota, table),
    "idrquota": Kind(_idrquota, shares),
}


def _space(name: str, now: datetime, blocks: Sequence[str], files: Sequence[str]) -> Space:
    used, soft, hard = (_amount(word, _KIB) for word in blocks[:3])
    used_files, soft_files, hard_files = (_amount(word, 1) for word in files[:3])
    return Space(
        name=name,
        at=now,
        used_bytes=used,
        limit_bytes=soft or hard or None,
        used_inodes=used_files,
        limit_inodes=soft_files or hard_files or None,
        how="quota",
        note="; ".join((*_over("bytes", used, soft, blocks[3]), *_over("inodes", used_files, soft_files, files[3]))),
    )


def _over(kind: str, used: int | None, soft: int | None, grace: str) -> Iterator[str]:
    if used is not None and soft and used > soft:
        if len(grace) >= _EPOCH_DIGITS and grace.isdigit():
            grace = f"until {datetime.fromtimestamp(int(grace), UTC):%Y-%m-%d %H:%M} UTC"
        yield f"above the soft limit of {kind}{f', grace {grace}' if grace not in _NO_GRACE else ''}"


def _is_amount(word: str) -> bool:
    return word.lower() in _NO_AMOUNT or _AMOUNT.fullmatch(word) is not None


def _amount(word: str, unit: int) -> int | None:
    """A number without a unit counts `unit`. None where it says that there is none."""
    match = _AMOUNT.fullmatch(word)
    if match is None:
        return None
    return int(float(match[1]) * (_UNITS[match[2].lower()] if match[2] else unit))
