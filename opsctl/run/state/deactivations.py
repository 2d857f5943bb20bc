"""Who took the kill switch away again: a line for each time, in `.opsctl/kill-switch.jsonl`, only added to.

The switch itself is gone then, and with it who had triggered it and why; both are kept here. Who removes the file with
`rm` leaves no line.
"""

from __future__ import annotations

import socket

import msgspec

from opsctl.core.account import account_name
from opsctl.core.files.state_files import append_state, make_folder, read_lines
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.kill_switch import KillSwitchState
from trainer.formats.json_text import Moment


class Deactivation(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    at: Moment
    by: str = ""
    host: str = ""
    triggered_by: str = ""
    triggered_at: Moment | None = None  # somebody who wrote it by hand may have left it away
    triggered_why: str = ""


def record_deactivation(paths: RunPaths, was: KillSwitchState) -> None:
    """Write down that this account has removed the switch as it `was`. Raises OSError."""
    done = Deactivation(
        at=now().replace(microsecond=0),
        by=account_name(),
        host=socket.gethostname(),
        triggered_by=was.by,
        triggered_at=was.at.astimezone() if was.at else None,
        triggered_why=was.why,
    )
    make_folder(paths.output, paths.state)
    append_state(paths.output, paths.kill_switch_log, done)


def read_deactivations(paths: RunPaths) -> list[Deactivation]:
    """All on record, oldest first. Raises OSError where they cannot be read."""
    return read_lines(paths.output, paths.kill_switch_log, Deactivation)
