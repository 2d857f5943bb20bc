"""The alert channels as a snapshot has them."""

from __future__ import annotations

from datetime import datetime

from opsctl.monitoring.snapshot import Channel
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.alert_log import channels_seen, events


def channels_of(paths: RunPaths, now: datetime) -> tuple[Channel, ...]:
    """Every channel that somebody's settings name, and since when it fails. Raises OSError where nobody can tell."""
    return tuple(
        Channel(name=one.name, failing_since=one.failing_since, detail=one.detail, waiting=one.waiting)
        for one in channels_seen(events(paths), now)
    )
