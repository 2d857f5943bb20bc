"""What looks after the run beside the training itself: nodes' clocks, the pseudo-cron, the alert channels."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from opsctl.monitoring.channels import channels_of
from opsctl.monitoring.gather.asked import Asked
from opsctl.monitoring.scheduler_state import cron_seen
from opsctl.monitoring.snapshot import Clock, Snapshot
from opsctl.run.attempts import events as attempts_file
from opsctl.run.state.attempt_folder import node_clocks
from opsctl.run.state.register import cron_folder, cron_folder_option


def clocks(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.CLOCKS: of the newest attempt's nodes, as its launchers began."""
    attempts = attempts_file.read(asked.paths)
    if not attempts:
        return seen
    folder = asked.paths.attempt_folder(attempts[-1].job_id)
    found = tuple(
        Clock(said.node, said.clock.timestamp() - stamped_s, datetime.fromtimestamp(stamped_s, UTC).astimezone())
        for said, stamped_s in node_clocks(asked.paths.output, folder)
    )
    return replace(seen, clocks=found)


def cron(seen: Snapshot, _: Asked) -> Snapshot:
    """Part.CRON."""
    return replace(seen, cron=cron_seen(cron_folder(), seen.now, cron_folder_option()))


def channels(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.CHANNELS."""
    return replace(seen, channels=channels_of(asked.paths, seen.now))
