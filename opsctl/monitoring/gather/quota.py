"""What a program of the site says of quotas, as a profile names it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from opsctl.core.account import account_name
from opsctl.core.files.trusted import who_else_can_write
from opsctl.core.process import ask
from opsctl.monitoring.gather.quota_kinds import KINDS, Whose
from opsctl.monitoring.snapshot import Space
from opsctl.run.config.profile import quota_command, site_watch_table

TIMEOUT_S = 10.0
#: A line for each quota: name, used, limit, and the same of files; `-` is not told. Other lines are passed over.
OWN_FORM = (
    r"^(?P<name>\S+)[ \t]+(?P<used>\S+)[ \t]+(?P<limit>\S+)"
    r"(?:[ \t]+(?P<used_inodes>\S+)[ \t]+(?P<limit_inodes>\S+))?[ \t]*$"
)
#: Where a command names the folder that is meant.
FOLDER = "{folder}"
_NUMBER = re.compile(r"([0-9][0-9,]*(?:\.[0-9]+)?)\s*([kKmMgGtTpPeE]?)(?:i?[bB])?\*?%?")
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "k", "m", "g", "t", "p", "e"))}


def quotas(folders: Sequence[Path], now: datetime, environment: Mapping[str, str] = os.environ) -> list[Space] | None:
    """What the profile's quota program says, its own or one that is known by name; None where no profile names one.

    It is run once for each of `folders` where it names them, else once. One that fails, or that a profile names which
    others than root and the reader could change, is a Space with a problem.
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
    """What a program of `quota_kinds` says, for each whose quota is meant; one that hangs is asked nothing more."""
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
    """Whether a program says that somebody has no quota: that is not to be told as trouble."""
    return text.rstrip().lower().endswith(("none", "no limits"))


def parsed(text: str, pattern: str, name: str, now: datetime) -> list[Space]:
    """The quotas in what a command printed.

    The pattern's groups: name, used, limit, used_inodes, limit_inodes, percent, inode_percent, whichever it has. Sizes
    may end in K, M, G, T or P (powers of 1024). A line that gives no number is passed over.
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
    match = _NUMBER.fullmatch(text.strip()) if text else None
    return float(match[1].replace(",", "")) * _UNITS[match[2].lower()] if match else None


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return None if number is None else int(number)
