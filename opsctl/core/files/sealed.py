"""Folders that are written once: they appear complete by one rename and do not change afterwards.

Any user of a shared folder can exchange its contents. So a reader takes all of it from one descriptor, and learns the
owner and whether other users could have written it.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.files.state_files import fsync_open_folder
from opsctl.core.files.trusted import Untrusted, create_file, names_in, open_within, opened_folder, readable

#: More than any of ours holds: what is larger was not written here.
_MOST_FILES = 64
_LARGEST_FILE_BYTES = 8 << 20


@dataclass(frozen=True)
class Sealed:
    """All that a sealed folder holds."""

    texts: Mapping[str, str]  # by file name
    owner: int  # uid of the folder and of every file in it
    is_open: bool  # others than the owner can change it, so that its owner vouches for nothing


def write_sealed(root: Path, folder: Path, texts: Mapping[str, str]) -> None:
    """Write a new read-only folder under `root` at once. Raises OSError; a kill leaves only `.new-*`."""
    building = folder.with_name(f".new-{socket.gethostname()}-{os.getpid()}")
    with opened_folder(root, folder.parent) as (around, _):
        openness = stat.S_IMODE(os.fstat(around).st_mode)
        _remove(around, building.name)
        try:
            os.mkdir(building.name, 0o700, dir_fd=around)
            within = os.open(building.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=around)
            try:
                for name, text in texts.items():
                    _write(within, building / name, text, openness & 0o440)
                os.fchmod(within, openness & 0o2750)
                os.fsync(within)
            finally:
                os.close(within)
            os.rename(building.name, folder.name, src_dir_fd=around, dst_dir_fd=around)
        except BaseException:
            _remove(around, building.name)
            raise
        fsync_open_folder(around)


def read_sealed(root: Path, folder: Path) -> Sealed:
    """Everything in `folder`. Raises OSError; Untrusted, one of them, where it is not all of one trusted account."""
    with opened_folder(root, folder) as (within, keepers):
        found = os.fstat(within)
        is_open = bool(found.st_mode & 0o022)
        texts = {}
        for name in names_in(within, folder, _MOST_FILES):
            fd = open_within(within, keepers, folder / name)
            with os.fdopen(fd, "rb") as file:
                one = os.fstat(fd)
                if one.st_uid != found.st_uid:
                    raise Untrusted("belongs to another account than its folder", folder / name)
                is_open |= bool(one.st_mode & 0o022)
                data = file.read(_LARGEST_FILE_BYTES + 1)
            if len(data) > _LARGEST_FILE_BYTES:
                raise Untrusted(f"holds more than {_LARGEST_FILE_BYTES} bytes", folder / name)
            texts[name] = data.decode(errors="surrogateescape")
        return Sealed(texts, found.st_uid, is_open)


def take_away(root: Path, folder: Path, name: str) -> None:
    """Take a sealed folder away, at once for everybody who reads. Raises OSError where that is not possible."""
    with opened_folder(root, folder.parent) as (around, _):
        os.rename(folder.name, name, src_dir_fd=around, dst_dir_fd=around)
        _remove(around, name)


def keep_apart(root: Path, folder: Path, closed: bool) -> None:
    """Make `folder` sticky; closed: only its owner may create in it. Raises OSError where it cannot be made."""
    with opened_folder(root, folder, make=True) as (within, _), opened_folder(root, folder.parent) as (around, _):
        found = os.fstat(within)
        openness = stat.S_IMODE(os.fstat(around).st_mode) & 0o2775 | stat.S_ISVTX
        wanted = openness & ~0o020 if closed else openness
        if os.geteuid() in (0, found.st_uid) and stat.S_IMODE(found.st_mode) != wanted:
            with readable(within) as fd:
                os.fchmod(fd, wanted)


def _write(within: int, path: Path, text: str, mode: int) -> None:
    fd = create_file(within, path, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(fd)


def _remove(around: int, name: str) -> None:
    shutil.rmtree(name, ignore_errors=True, dir_fd=around)
