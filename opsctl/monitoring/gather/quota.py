"""Quotas: what a program of the site prints, its own, or one that is known by name.

`lustre` (lfs quota), `gpfs` (mmlsquota), `quota` (Linux's own) and `idrquota` (IDRIS). Of a soft limit and a hard one
the soft one counts, for after its grace nothing can be written beyond it either; 0, `-` and `none` are no limit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

from opsctl.core.account import account_name
from opsctl.core.dirwalk.file_system import mount_point_of
from opsctl.core.files.trusted import who_else_can_write
from opsctl.core.process import ask
from opsctl.monitoring.snapshot import Space
from opsctl.run.config.profile import quota_command, site_watch_table

_KIB = 1024
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "k", "m", "g", "t", "p", "e"))}
#: A number, maybe with a unit; `*`: above its limit; in brackets: not quite exact.
_NUMBER = re.compile(r"\[?([0-9][0-9,]*(?:\.[0-9]+)?)\s*([kKmMgGtTpPeE]?)(?:i?[bB])?\]?\*?%?")
_NO_AMOUNT = ("-", "none", "unlimited")
_COLUMNS = 8  # used, soft, hard, grace; of bytes, then of files
_PERCENT = re.compile(r"\(\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*\)")
#: A grace period given as the second when it ends, not as its length.
_EPOCH_DIGITS = 9
_NO_GRACE = ("", "-", "none", "0")


@dataclass(frozen=True)
class Whose:
    """The owner of a quota."""

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
    """Parse the output of `lfs quota` and `quota`: a file system, and twice used, soft and hard limit, grace.

    A long name of a file system is on a separate line.
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
    """Parse the output of `mmlsquota -Y`: a line of names, then a line per file system or file set, with colons."""
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
    """Parse the output of `idrquota`: shares of bytes and inodes in brackets, each line with the name of its disk."""
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
    used, soft, hard = (_whole(word, _KIB) for word in blocks[:3])
    used_files, soft_files, hard_files = (_whole(word) for word in files[:3])
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
    return word.lower() in _NO_AMOUNT or _NUMBER.fullmatch(word) is not None


TIMEOUT_S = 10.0
#: A line for each quota: name, used, limit, and the same of files; `-` is not told. Other lines are passed over.
OWN_FORM = (
    r"^(?P<name>\S+)[ \t]+(?P<used>\S+)[ \t]+(?P<limit>\S+)"
    r"(?:[ \t]+(?P<used_inodes>\S+)[ \t]+(?P<limit_inodes>\S+))?[ \t]*$"
)
#: Where a command names the folder that is meant.
FOLDER = "{folder}"


def quotas(folders: Sequence[Path], now: datetime, environment: Mapping[str, str] = os.environ) -> list[Space] | None:
    """Return the output of the profile's quota program, its own or one known by name; None if no profile names one.

    It runs once for each of `folders` if it names them, else once. A program that fails, or that users other than root
    and the reader could change, gives a Space with a problem.
    """
    named = quota_command(environment)
    if named is None:
        return _known_by_name(folders, now, environment)
    profile, words, pattern = named
    try:
        why = who_else_can_write(profile)
    except OSError as error:
        why = f"{profile} cannot be seen: {error.strerror}"
    if why is not None:
        return [Space("quota", now, how="quota", problem=f"the quota command of {profile} is not run: {why}")]
    wanted: list[tuple[str, ...]] = [words]
    if any(FOLDER in word for word in words):
        wanted = [tuple(word.replace(FOLDER, str(folder)) for word in words) for folder in folders]
    found: dict[str, Space] = {}
    for command, folder in zip(wanted, [*folders, Path()], strict=False):
        name = f"quota of {folder}" if len(wanted) > 1 or command != words else "quota"
        said = ask(command, TIMEOUT_S)
        spaces = parsed(said.out, pattern or OWN_FORM, name, now)
        if said.problem or not spaces:
            problem = said.problem or f"{command[0]} printed nothing that the pattern fits"
            spaces = [Space(name, now, how="quota", problem=problem)]
        found.update({one.name: one for one in spaces})
    return list(found.values())


def _known_by_name(folders: Sequence[Path], now: datetime, environment: Mapping[str, str]) -> list[Space] | None:
    """Return the output of a program of `quota_kinds` for each owner; one that hangs is not asked again."""
    watch = site_watch_table(environment)
    if watch.quota is None:
        return None
    kind, found = KINDS[watch.quota], list[Space]()
    for written in watch.quota_of:
        what, _, name = written.partition(":")
        whose = Whose(what, name or account_name())
        of_whom = f"quota of {whose.what} {whose.name}"
        for command in kind.commands(whose, folders):
            said = ask(command, TIMEOUT_S)
            spaces = kind.read(said.out, of_whom, now)  # some end with an error where a quota is exceeded
            if not spaces and (said.problem or not _says_none(said.out)):
                problem = said.problem or f"{command[0]} printed no quota that is understood"
                spaces = [Space(of_whom, now, how="quota", problem=problem)]
            found += spaces
            if said.is_hanging:
                return found
    return found


def _says_none(text: str) -> bool:
    """Return whether a program reports that there is no quota, which is not a problem."""
    return text.rstrip().lower().endswith(("none", "no limits"))


def parsed(text: str, pattern: str, name: str, now: datetime) -> list[Space]:
    """Return the quotas in the output of a command.

    The pattern's groups: name, used, limit, used_inodes, limit_inodes, percent, inode_percent, as far as it has them.
    Sizes may end in K, M, G, T or P (powers of 1024). A line without a number is skipped.
    """
    found = []
    for match in re.finditer(pattern, text, re.MULTILINE):
        groups = match.groupdict()
        percent, inode_percent = _number(groups.get("percent")), _number(groups.get("inode_percent"))
        space = Space(
            name=f"quota {groups['name']}" if groups.get("name") else name,
            at=now,
            used_bytes=_whole(groups.get("used")),
            limit_bytes=_whole(groups.get("limit")) or None,
            used_inodes=_whole(groups.get("used_inodes")),
            limit_inodes=_whole(groups.get("limit_inodes")) or None,
            percent=percent,
            inode_percent=inode_percent,
            how="quota",
        )
        if space.used_bytes is not None or percent is not None or inode_percent is not None:
            found.append(space)
    return found


def _number(text: str | None, unit: int = 1) -> float | None:
    """Return a number; one without a unit of its own counts `unit`. None for a text that is none."""
    match = _NUMBER.fullmatch(text.strip()) if text else None
    if match is None:
        return None
    return float(match[1].replace(",", "")) * (_UNITS[match[2].lower()] if match[2] else unit)


def _whole(text: str | None, unit: int = 1) -> int | None:
    number = _number(text, unit)
    return None if number is None else int(number)
