"""Reading what will be run as the reader: once, by descriptor, and only from those whose word that may be."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from opsctl.core.account import account_name, is_member, is_nobody_elses, unix_group
from opsctl.core.files.trusted import Untrusted, names_in, open_file, opened_folder

#: More than any script that a person wrote.
LARGEST_PROGRAM_BYTES = 1 << 20


def read_program(root: Path, path: Path, group: str | None) -> str:
    """The text of the program `path` under `root`.

    It is run as the reader, so it must be the reader's own or root's or, with `group`, which the reader's own profile
    names, a member's; and nobody else may be able to write it. What runs is this text, whatever lies there by then.
    Raises OSError: Untrusted, FileNotFoundError.
    """
    fd = open_file(root, path)
    try:
        _judge(os.fstat(fd), path, None if group is None else unix_group(group).gr_gid)
        data = bytearray()
        while len(data) <= LARGEST_PROGRAM_BYTES and (more := os.read(fd, LARGEST_PROGRAM_BYTES)):
            data += more
    finally:
        os.close(fd)
    if len(data) > LARGEST_PROGRAM_BYTES:
        raise Untrusted(f"holds more than {LARGEST_PROGRAM_BYTES} bytes", path)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise Untrusted("is not UTF-8 text", path) from None
    if "\0" in text:
        raise Untrusted("has a zero byte in it: a program, not a script", path)
    return text


def names_of(root: Path, folder: Path, most: int) -> list[str]:
    """The names in a folder under `root`, sorted; none where there is no such folder. Raises OSError, Untrusted."""
    try:
        with opened_folder(root, folder) as (within, _):
            return names_in(within, folder, most)
    except FileNotFoundError:
        return []


def _judge(found: os.stat_result, path: Path, gid: int | None) -> None:
    if found.st_uid not in (0, os.geteuid()) and (gid is None or not is_member(found.st_uid, gid)):
        owner = account_name(found.st_uid)
        raise Untrusted(
            f"belongs to {owner}, and would run as {account_name()}: only your own and your group's do", path
        )
    if found.st_mode & stat.S_IWGRP and found.st_gid != gid and not is_nobody_elses(found.st_gid):
        raise Untrusted("can be written by a group that your profile does not name: chmod g-w it", path)
