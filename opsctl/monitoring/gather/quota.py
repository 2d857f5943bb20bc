"""Quotas that the profile's own program prints."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from opsctl.core.files.trusted import who_else_can_write
from opsctl.core.process import ask
from opsctl.monitoring.snapshot import Space
from opsctl.run.config.profile import quota_command

_UNITS = {unit: 1024**power for power, unit in enumerate(("", "k", "m", "g", "t", "p", "e"))}
#: A number, maybe with a unit; `*`: above its limit; in brackets: not quite exact.
_NUMBER = re.compile(r"\[?([0-9][0-9,]*(?:\.[0-9]+)?)\s*([kKmMgGtTpPeE]?)(?:i?[bB])?\]?\*?%?")
TIMEOUT_S = 10.0
#: A line for each quota: name, used, limit, and the same of files; `-` is not told. Other lines are passed over.
OWN_FORM = (
    r"^(?P<name>\S+)[ \t]+(?P<used>\S+)[ \t]+(?P<limit>\S+)"
    r"(?:[ \t]+(?P<used_inodes>\S+)[ \t]+(?P<limit_inodes>\S+))?[ \t]*$"
)
#: Where a command names the folder that is meant.
FOLDER = "{folder}"


def quotas(folders: Sequence[Path], now: datetime, environment: Mapping[str, str] = os.environ) -> list[Space] | None:
    """Return the quotas that the profile's program prints; None if no profile names one.

    It runs once for each of `folders` if it names them, else once. A program that fails, or that users other than root
    and the reader could change, gives a Space with a problem.
    """
    named = quota_command(environment)
    if named is None:
        return None
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


def _number(text: str | None) -> float | None:
    """Return a number with its unit applied; None for another text."""
    match = _NUMBER.fullmatch(text.strip()) if text else None
    if match is None:
        return None
    unit: int = _UNITS[match[2].lower()]
    return float(match[1].replace(",", "")) * unit


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)
