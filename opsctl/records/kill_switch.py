"""The kill switch: a file whose presence makes a training save and leave, whoever owns the job.

Its content says who, when and why; the file alone is what counts, so `touch` triggers and `rm` deactivates.
Nothing here needs Slurm.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opsctl.account import account_name, unix_group
from opsctl.errors import OpsctlError
from opsctl.moments import iso, now
from opsctl.output import printable
from opsctl.records.state_files import SHARED_FILE_MODE, make_shared_folder, write_state
from opsctl.runs.paths import RunPaths

#: Longest content read: whatever else somebody writes there, it only has to exist.
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True)
class KillSwitchState:
    """What the file system says about a run's kill switch."""

    path: Path
    is_armed: bool  # somebody of the group can create the file, and the path is recorded
    is_triggered: bool
    by: str = ""  # who triggered it; the file's owner when the file does not say
    host: str = ""
    at: datetime | None = None
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "armed": self.is_armed,
            "triggered": self.is_triggered,
            "by": self.by or None,
            "host": self.host or None,
            "at": self.at.isoformat(timespec="seconds") if self.at else None,
            "why": self.why or None,
        }

    def describe(self) -> str:
        """Who, when and why in a few words; empty when it is not triggered."""
        if not self.is_triggered:
            return ""
        when = f" at {iso(self.at)}" if self.at else ""
        return f"by {self.by or 'somebody'}{when}" + (f": {self.why}" if self.why else "")


@dataclass(frozen=True)
class Change:
    """What a command did: the state it left, and whether that is news."""

    state: KillSwitchState
    changed: bool


def switch_path(paths: RunPaths) -> Path:
    """The recorded path, else the default `<output>/kill-switch`."""
    recorded = _recorded(paths).get("path")
    return Path(recorded) if isinstance(recorded, str) and recorded.startswith("/") else paths.kill_switch


def is_triggered(path: Path) -> bool:
    """Whether anything is at `path`. Raises OpsctlError when that cannot be seen: blind must not pass for "no"."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise OpsctlError(
            f"cannot look at the kill switch {path}: {error.strerror}; ask its owner for access"
        ) from None
    return True


def state(paths: RunPaths) -> KillSwitchState:
    """Whether the switch is armed and triggered, and by whom. An empty or foreign file counts, as its owner's."""
    path = switch_path(paths)
    if not is_triggered(path):
        return KillSwitchState(path, _is_armed(paths, path), False)
    content = _content(path)
    by, at = _owner_and_time(path)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        at = datetime.fromisoformat(content["at"])
    if at is not None and at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return KillSwitchState(
        path,
        _is_armed(paths, path),
        True,
        by=_text(content, "by") or by,
        host=_text(content, "host"),
        at=at,
        why=_text(content, "why"),
    )


def arm(paths: RunPaths, group: str | None = None, path: Path | None = None) -> Change:
    """Let `group` (default: the folder's own) trigger this run's switch at `path`, and record the path.

    The switch's folder becomes group-writable and setgid. Raises OpsctlError when it is not so and cannot be made so.
    """
    wanted = path or switch_path(paths)
    make_shared_folder(paths.state)
    make_shared_folder(wanted.parent)
    before = _is_armed(paths, wanted) and _has_group(wanted.parent, group)
    if not before:
        _open_to_group(wanted.parent, group)
        record = {"path": str(wanted), "armed_by": account_name(), "armed_at": iso(now())}
        write_state(_record_file(paths), record)
    return Change(state(paths), not before)


def trigger(paths: RunPaths, why: str = "") -> Change:
    """Create the switch with who, when and why, whole at once. One that is there already stays as it is."""
    path = switch_path(paths)
    note = {"by": account_name(), "host": socket.gethostname(), "at": iso(now()), "why": why}
    beside = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.tmp")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, SHARED_FILE_MODE)
        try:
            os.fchmod(fd, SHARED_FILE_MODE)
            os.write(fd, (json.dumps(note) + "\n").encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        # A link fails where a rename would silently replace what somebody else wrote a moment ago.
        os.link(beside, path)
        changed = True
    except FileExistsError:
        changed = False
    except FileNotFoundError:
        raise OpsctlError(f"no folder {path.parent}: the run has no output yet, nothing can be killed there") from None
    except PermissionError:
        raise OpsctlError(_no_permission(path, "create")) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
    return Change(state(paths), changed)


def deactivate(paths: RunPaths) -> Change:
    """Remove the switch. Returns what it was; `changed` is False when there was nothing to remove."""
    before = state(paths)
    try:
        before.path.unlink()
    except FileNotFoundError:
        return Change(before, False)
    except IsADirectoryError:
        raise OpsctlError(f"{before.path} is a folder, not a kill switch: remove it by hand") from None
    except PermissionError:
        raise OpsctlError(_no_permission(before.path, "remove")) from None
    return Change(before, True)


def _record_file(paths: RunPaths) -> Path:
    return paths.state / "kill-switch.json"


def _recorded(paths: RunPaths) -> dict[str, Any]:
    return _read_json(_record_file(paths))


def _content(path: Path) -> dict[str, Any]:
    return _read_json(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _text(content: dict[str, Any], key: str) -> str:
    """A value as one printable line: the file may hold anything."""
    value = content.get(key)
    return printable(value, " ").strip() if isinstance(value, str) else ""


def _owner_and_time(path: Path) -> tuple[str, datetime | None]:
    try:
        found = path.stat()
    except OSError:
        return "", None
    return account_name(found.st_uid), datetime.fromtimestamp(found.st_mtime, UTC)


def _is_armed(paths: RunPaths, path: Path) -> bool:
    if _recorded(paths).get("path") != str(path):
        return False
    try:
        mode = path.parent.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_ISGID) and mode & 0o070 == 0o070


def _has_group(folder: Path, group: str | None) -> bool:
    return group is None or folder.stat().st_gid == unix_group(group).gr_gid


def _open_to_group(folder: Path, group: str | None) -> None:
    found = folder.stat()
    try:
        if group is not None and found.st_gid != unix_group(group).gr_gid:
            os.chown(folder, -1, unix_group(group).gr_gid)
        # chown clears the setgid bit, so the mode comes after it.
        mode = stat.S_IMODE(found.st_mode) | 0o2070
        if stat.S_IMODE(folder.stat().st_mode) != mode:
            folder.chmod(mode)
    except PermissionError:
        owner = account_name(found.st_uid)
        raise OpsctlError(
            f"cannot open {folder} to the group: it belongs to {owner}; {owner} can run opsctl kill-switch arm"
            + (f" (and must be in group {group})" if group else "")
        ) from None


def _no_permission(path: Path, verb: str) -> str:
    try:
        owner = account_name(path.parent.stat().st_uid)
    except OSError:
        owner = "its owner"
    return f"may not {verb} {path}: permission denied; {owner} can open it to the group with opsctl kill-switch arm"
