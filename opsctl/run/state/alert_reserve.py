"""`.opsctl/alerts.reserve`: disk kept for alert records, which a full disk or quota must not stop.

Records that `alerts.json` and `alerts.jsonl` cannot take are stored here until they can. The file is overwritten in
place. A host that dies during such a write loses what was stored: at worst a message is sent a second time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from opsctl.core.files.reserve import room_left, write_over, write_reserve
from opsctl.core.files.state_files import FULL_DISK, append_bytes, append_state, read_text, write_state
from opsctl.core.files.trusted import open_file
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from trainer.formats.file_lock import lock_within
from trainer.formats.json_text import json_line, plain
from trainer.formats.tolerant import decode

#: Room for the findings of a run and for a few hundred lines about them.
SIZE_BYTES = 128 << 10
_LOCK_WAIT_S = 5.0
#: The kernel's lock is the process's; several threads send at once.
_THREADS = threading.Lock()


class Stored(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Records that the two files could not take."""

    since: datetime | None = None  # the first of it; None: nothing is stored
    lines: tuple[dict[str, Any], ...] = ()  # of alerts.jsonl
    moved: int = 0  # lines that the log has since taken
    memory: dict[str, Any] | None = None  # all of alerts.json
    replaces: str = ""  # the digest of the alerts.json that `memory` is newer than

    @property
    def records(self) -> int:
        """Return how many the reserve was needed for."""
        return len(self.lines) + self.moved + (self.memory is not None)

    def newest_memory(self, text: str | None) -> dict[str, Any] | None:
        """Return the stored memory, or None if alerts.json, whose text is given, was written after it."""
        return self.memory if self.replaces == _digest(text) else None

    def describe(self, paths: RunPaths) -> str:
        """Return what happened in a line; empty where nothing is stored."""
        if self.since is None:
            return ""
        since = f"{self.since:%Y-%m-%d %H:%M}"
        return f"no space left since {since}: {self.records} alert records stored in {paths.alert_reserve}"


def keep(paths: RunPaths) -> None:
    """Make the reserve where there is none. Raises OSError."""
    write_reserve(paths.output, paths.alert_reserve, Stored(), SIZE_BYTES)


def read(paths: RunPaths) -> Stored:
    """Return what is stored; nothing where that cannot be read."""
    with contextlib.suppress(OSError), _opened(paths, os.O_RDWR) as fd:
        return _read(fd)
    with contextlib.suppress(OSError), _opened(paths, os.O_RDONLY) as fd:  # a reader who may not write
        return _read(fd)
    return Stored()


def has_room(paths: RunPaths, size_bytes: int) -> bool:
    """Return whether `size_bytes` more bytes can be stored."""
    with contextlib.suppress(OSError), _opened(paths, os.O_RDWR) as fd:
        return fd is not None and room_left(fd, _read(fd)) >= size_bytes
    return False


def append_line(paths: RunPaths, line: msgspec.Struct) -> None:
    """Append to alerts.jsonl what is stored, then `line`; store that too where the disk is full. Raises OSError."""
    with _opened(paths, os.O_RDWR) as fd:
        stored = _read(fd)
        try:
            stored = _settle_lines(paths, fd, stored)
            append_state(paths.output, paths.alert_log, line)
        except OSError as error:
            _store(fd, error, stored, lines=(*stored.lines, plain(line)))


def write_memory(paths: RunPaths, value: dict[str, Any]) -> None:
    """Replace alerts.json, or store `value` where the disk is full. Raises OSError."""
    with _opened(paths, os.O_RDWR) as fd:
        stored = _read(fd)
        try:
            write_state(paths.output, paths.alerts, value)
        except OSError as error:
            replaces = _digest(read_text(paths.output, paths.alerts))
            _store(fd, error, stored, memory=value, replaces=replaces)


def settle(paths: RunPaths) -> Stored:
    """Move what is stored to the two files if the disk takes it; returns what was stored. Raises OSError."""
    with _opened(paths, os.O_RDWR) as fd:
        before = _read(fd)
        if before.since is None:
            return before
        try:
            stored = _settle_lines(paths, fd, before)
            memory = stored.newest_memory(read_text(paths.output, paths.alerts))
            if memory is not None:
                write_state(paths.output, paths.alerts, memory)
            why = f"no space left: {before.records} records were stored in {paths.alert_reserve.name}"
            full = {"event": "full", "at": before.since, "until": now(), "why": why}
            append_state(paths.output, paths.alert_log, full)
            _write(fd, Stored())
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
        return before


def _settle_lines(paths: RunPaths, fd: int | None, stored: Stored) -> Stored:
    """Append the lines to the log, and return `stored` without them."""
    if not stored.lines:
        return stored
    lines = "".join(f"{json_line(one)}\n" for one in stored.lines)
    append_bytes(paths.output, paths.alert_log, lines.encode())
    kept = msgspec.structs.replace(stored, lines=(), moved=stored.moved + len(stored.lines))
    _write(fd, kept)
    return kept


def _store(fd: int | None, error: OSError, stored: Stored, **more: Any) -> None:
    """Add to what is stored. Raises `error` where it is no full disk, or the reserve takes no more either."""
    if fd is None or error.errno not in FULL_DISK:
        raise error
    try:
        _write(fd, msgspec.structs.replace(stored, since=stored.since or now(), **more))
    except OSError:
        raise error from None


def _write(fd: int | None, stored: Stored) -> None:
    assert fd is not None
    write_over(fd, stored)


def _read(fd: int | None) -> Stored:
    text = b"" if fd is None else os.pread(fd, SIZE_BYTES, 0).strip()
    return decode(text, Stored) or Stored()


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode(errors="replace")).hexdigest()


@contextlib.contextmanager
def _opened(paths: RunPaths, flags: int) -> Iterator[int | None]:
    """Open the reserve under its lock; None where there is none. Raises OSError."""
    with _THREADS:
        try:
            fd = open_file(paths.output, paths.alert_reserve, flags)
        except FileNotFoundError:
            yield None
            return
        try:
            if flags != os.O_RDONLY:
                lock_within(fd, _LOCK_WAIT_S)
            yield fd
        finally:
            os.close(fd)
