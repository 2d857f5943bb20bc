"""Since when a hand-over tells: a time, a length, or the last time that this account asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta

from opsctl.core.errors import UsageError
from opsctl.core.files.state_files import read_state, write_state
from opsctl.run.config.locate import account_state_folder
from opsctl.slurm.durations import parse_duration_s

LAST = "last"
USUAL = timedelta(hours=12)
_LENGTH = re.compile(r"(?P<number>\d{1,6}) ?(?P<unit>min|m|h|d|w)")
_SECONDS = {"min": 60, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MEANT = "--since {text}: allowed is a length (90min, 12h, 3d, 1-12:00:00), a time (2026-03-01T08:00), or last"


def since_of(text: str, now: datetime, last: datetime | None) -> datetime:
    """The moment that `text` means. last: when this account asked before, None: never.

    Never asked, or by a clock that has been set back since, is the usual length. Raises UsageError.
    """
    if text == LAST:
        return last if last is not None and last <= now else now - USUAL
    match = _LENGTH.fullmatch(text)
    try:
        if match:
            return now - timedelta(seconds=int(match["number"]) * _SECONDS[match["unit"]])
        if ":" in text and "T" not in text:
            return now - timedelta(seconds=parse_duration_s(text))
        moment = datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(_MEANT.format(text=text)) from None
    if moment > now:
        raise UsageError(f"--since {text}: that is still to come")
    return moment


def last_asked(environment: Mapping[str, str]) -> dict[str, datetime]:
    """Output folder -> when this account last had its hand-over told."""
    folder = account_state_folder(environment)
    found = read_state(folder, folder / "on-call.json", dict[str, datetime]) or {}
    return {name: at for name, at in found.items() if at.tzinfo is not None}


def remember_asked(outputs: Mapping[str, datetime], environment: Mapping[str, str]) -> None:
    """Put it down for the next `last`. Not being able to fails no command."""
    folder = account_state_folder(environment)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_state(folder, folder / "on-call.json", {**last_asked(environment), **outputs}, mode=0o600)
    except OSError:
        pass
