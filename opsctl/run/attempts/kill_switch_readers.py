"""The attempts that check a run's kill switch, the path that each checks, and their responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.output import printable
from opsctl.run.attempts import events as attempts_file
from opsctl.run.attempts.events import Attempt
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.attempt_folder import exit_report, leaving_note
from opsctl.run.state.kill_switch import PrintedLooker
from trainer.formats.logs.guard_lines import Reason

_POLL_S = 0.2


@dataclass(frozen=True)
class SwitchReader:
    """A live attempt, and whether its trainer sees this run's kill switch."""

    attempt: Attempt
    sees_it: bool

    @property
    def job(self) -> str:
        """Return the job id as squeue shows it."""
        return self.attempt.display_id

    def printed(self, response: str | None) -> PrintedLooker:
        """Return the attempt as printed, with its response so far."""
        return PrintedLooker(self.job, self.attempt.kill_switch_path, self.sees_it, response)


def switch_readers(paths: RunPaths) -> list[SwitchReader]:
    """Return the open attempts. Raises OpsctlError if they cannot be read, because none would be a wrong answer."""
    try:
        attempts = attempts_file.read(paths)
    except OSError as error:
        raise OpsctlError(
            f"cannot find the jobs that check it: cannot read {error.filename or paths.attempts}: {error.strerror}"
        ) from None
    return [
        SwitchReader(one, sees(one.kill_switch_path, one.kill_switch_inode, paths.kill_switch, folder_inode))
        for one in attempts
        if one.is_open
    ]


def folder_inode(path: Path) -> int | None:
    """Return the inode of the folder of `path`, the same after a move and another in a copy; None unseen."""
    try:
        return path.parent.stat().st_ino
    except OSError:
        return None


def sees(looks_at: str, inode_then: int | None, switch: Path, inode_now: Callable[[Path], int | None]) -> bool:
    """Return True if a trainer that checks `looks_at` sees `switch`. inode_then: its folder's at the start, which it
    keeps open; None if not recorded. inode_now: returns a path's current inode.
    """
    if looks_at in ("", str(switch)):
        return True
    path = Path(looks_at)
    known = inode_now(path) if inode_then is None else inode_then
    return path.name == switch.name and known is not None and known == inode_now(switch)


def word(paths: RunPaths, attempt: Attempt) -> str:
    """Return the response of `attempt`; empty without one."""
    folder = paths.attempt_folder(attempt.job_id)
    left, leaving = exit_report(paths.output, folder), leaving_note(paths.output, folder)
    if left.reason:
        return f"has left{_at(left.iteration)} ({printable(left.reason)})"
    if leaving.reason == Reason.KILL_SWITCH:
        return f"seen{_at(leaving.iteration)}, {'saving' if leaving.saves else 'leaving without a save'}"
    return f"was leaving already{_at(leaving.iteration)} ({printable(leaving.reason)})" if leaving.reason else ""


def _at(iteration: int | None) -> str:
    return "" if iteration is None else f" at iteration {iteration}"


def wait_for_words(
    paths: RunPaths, live: Sequence[SwitchReader], wait_s: float, tell: Callable[[SwitchReader, str], None]
) -> list[SwitchReader]:
    """Wait up to `wait_s` seconds until each has responded or ended, pass responses to `tell`, return the others."""
    deadline, silent = time.monotonic() + wait_s, list(live)
    while True:
        ended = _ended(paths)
        for reader in list(silent):
            response = word(paths, reader.attempt) or ended.get(reader.attempt.id, "")
            if response:
                tell(reader, response)
                silent.remove(reader)
        if not silent or time.monotonic() >= deadline:
            return silent
        time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))


def _ended(paths: RunPaths) -> dict[str, str]:
    """Return attempt id -> message for attempts that ended according to the records; empty if unreadable."""
    try:
        attempts = attempts_file.read(paths)
    except OSError:
        return {}
    return {one.id: f"has ended ({printable(str(one.reason))})" for one in attempts if not one.is_open}
