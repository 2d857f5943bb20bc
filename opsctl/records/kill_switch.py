"""The kill switch: a file whose presence makes a training save and leave, whoever owns the job.

Its content says who, when and why; the file alone is what counts, so `touch` triggers and `rm` deactivates.
Nothing here needs Slurm.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from opsctl.account import account_name
from opsctl.errors import OpsctlError
from opsctl.moments import iso, now, to_the_second
from opsctl.output import printable
from opsctl.records.group_folder import is_open_to_group, open_output, owner_of
from opsctl.records.state_files import create_state, make_folder, read_state, write_state
from opsctl.runs.paths import RunPaths
from trainer.formats.json_text import Moment

#: Longest content read: whatever else somebody writes there, it only has to exist.
_LARGEST_BYTES = 64 * 1024


class Armed(msgspec.Struct, frozen=True):
    """`.opsctl/kill-switch.json`: where the switch is, and who let the group trigger it."""

    path: str = ""
    armed_by: str = ""
    armed_at: Moment | None = None


class Note(msgspec.Struct, frozen=True):
    """What the switch itself says."""

    by: str = ""
    host: str = ""
    at: datetime | None = None  # somebody who writes it by hand may leave the zone away
    why: str = ""


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

    def describe(self) -> str:
        """Who, when and why in a few words; empty when it is not triggered."""
        if not self.is_triggered:
            return ""
        when = f" at {iso(self.at)}" if self.at else ""
        return f"by {self.by or 'somebody'}{when}" + (f": {self.why}" if self.why else "")


class PrintedKillSwitch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run's kill switch; who, when and why are null while it is not triggered and where its file does not say."""

    path: Annotated[str, Meta(description="Absolute path of the file.")]
    armed: Annotated[bool, Meta(description="Whether the group can create the file and its path is recorded.")]
    triggered: Annotated[bool, Meta(description="Whether the file is there.")]
    by: Annotated[str | None, Meta(description="Who triggered it; the file's owner when the file does not say.")]
    host: Annotated[str | None, Meta(description="Where they did.")]
    at: Annotated[Moment | None, Meta(description="When they did.")]
    why: Annotated[str | None, Meta(description="Why they did.")]
    story: Annotated[str | None, Meta(description="Who, when and why in a few words.")]
    changed: Annotated[bool | None, Meta(description="Whether this command changed it; not where it only looks.")] = (
        None
    )


def printed_switch(state: KillSwitchState, changed: bool | None = None) -> PrintedKillSwitch:
    """`state` for programs. `changed`: whether that is news; None where nobody tried."""
    return PrintedKillSwitch(
        path=str(state.path),
        armed=state.is_armed,
        triggered=state.is_triggered,
        by=state.by or None,
        host=state.host or None,
        at=to_the_second(state.at),
        why=state.why or None,
        story=state.describe() or None,
        changed=changed,
    )


@dataclass(frozen=True)
class Change:
    """What a command did: the state it left, and whether that is news."""

    state: KillSwitchState
    changed: bool


def switch_path(paths: RunPaths) -> Path:
    """The recorded path, else the default `<output>/kill-switch`."""
    recorded = _recorded(paths)
    return Path(recorded) if recorded.startswith("/") else paths.kill_switch


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
    note = read_state(_root(paths, path), path, Note, _LARGEST_BYTES) or Note()
    by, changed_at = _owner_and_time(path)
    at = note.at or changed_at
    return KillSwitchState(
        path,
        _is_armed(paths, path),
        True,
        by=_one_line(note.by) or by,
        host=_one_line(note.host),
        at=at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at,
        why=_one_line(note.why),
    )


def arm(paths: RunPaths, group: str | None = None, path: Path | None = None) -> Change:
    """Let `group` (default: the folder's own) trigger this run's switch at `path`, and record the path.

    The switch's folder becomes group-writable and setgid. Raises OpsctlError when it is not so and cannot be made so.
    """
    wanted = path or switch_path(paths)
    open_output(paths.output, group)
    make_folder(paths.output, paths.state)
    if wanted.is_relative_to(paths.output):
        make_folder(paths.output, wanted.parent)
    before = _is_armed(paths, wanted, group)
    if not before:
        write_state(paths.output, _record_file(paths), Armed(str(wanted), account_name(), now().replace(microsecond=0)))
    return Change(state(paths), not before)


def trigger(paths: RunPaths, why: str = "") -> Change:
    """Create the switch with who, when and why, whole at once. One that is there already stays as it is."""
    path = switch_path(paths)
    note = Note(account_name(), socket.gethostname(), now().replace(microsecond=0), why)
    try:
        changed = create_state(_root(paths, path), path, note)
    except FileNotFoundError:
        raise OpsctlError(f"no folder {path.parent}: the run has no output yet, nothing can be killed there") from None
    except PermissionError:
        raise OpsctlError(_no_permission(path, "create")) from None
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


def _root(paths: RunPaths, path: Path) -> Path:
    """What of the way to the switch is judged: from the run's folder on, or its own folder where it is elsewhere."""
    return paths.output if path.is_relative_to(paths.output) else path.parent


def _recorded(paths: RunPaths) -> str:
    """The path that was recorded at arming; empty before."""
    return (read_state(paths.output, _record_file(paths), Armed) or Armed()).path


def _one_line(text: str) -> str:
    """One printable line: the file may hold anything."""
    return printable(text, " ").strip()


def _owner_and_time(path: Path) -> tuple[str, datetime | None]:
    try:
        found = path.stat()
    except OSError:
        return "", None
    return account_name(found.st_uid), datetime.fromtimestamp(found.st_mtime, UTC)


def _is_armed(paths: RunPaths, path: Path, group: str | None = None) -> bool:
    return _recorded(paths) == str(path) and (group is None or is_open_to_group(path.parent, group))


def _no_permission(path: Path, verb: str) -> str:
    owner = owner_of(path.parent)
    return f"may not {verb} {path}: permission denied; {owner} can open it to the group with opsctl kill-switch arm"
