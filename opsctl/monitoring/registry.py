"""All checks: `opsctl status` shows what they find, `opsctl watch` runs those that have a command."""

from __future__ import annotations

from opsctl.monitoring.check import Detector
from opsctl.monitoring.checks import (
    backups,
    brake,
    channels,
    checkpoint_age,
    checkpoint_files,
    checkpoints,
    clocks,
    cron,
    cron_jobs,
    filesystem,
    filling,
    gradients,
    hub_sync,
    identity,
    kill_switch,
    lease,
    loss_nan,
    loss_spike,
    loss_stuck,
    must_run,
    nodes,
    purge,
    queue,
    revision,
    silence,
    skipped,
    slow_node,
    spare_nodes,
    speed,
    spike_guard,
    throughput,
    training,
    unpublished,
    waiting,
)

#: In the order in which equally bad findings are shown.
DETECTORS: tuple[Detector, ...] = (
    training.DETECTOR,
    must_run.DETECTOR,
    waiting.DETECTOR,
    queue.DETECTOR,
    revision.DETECTOR,
    checkpoints.DETECTOR,
    identity.DETECTOR,
    lease.DETECTOR,
    nodes.DETECTOR,
    spare_nodes.DETECTOR,
    slow_node.DETECTOR,
    silence.DETECTOR,
    speed.DETECTOR,
    throughput.DETECTOR,
    loss_nan.DETECTOR,
    loss_spike.DETECTOR,
    spike_guard.DETECTOR,
    loss_stuck.DETECTOR,
    gradients.DETECTOR,
    skipped.DETECTOR,
    checkpoint_age.DETECTOR,
    checkpoint_files.DETECTOR,
    backups.DETECTOR,
    brake.DETECTOR,
    filesystem.DETECTOR,
    filling.DETECTOR,
    purge.DETECTOR,
    cron.DETECTOR,
    cron_jobs.DETECTOR,
    hub_sync.DETECTOR,
    channels.DETECTOR,
    clocks.DETECTOR,
    kill_switch.DETECTOR,
    unpublished.DETECTOR,
)
#: Commands for several checks that one asks together: name -> (help, checks).
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "progress": (
        "Does the training get on? Its log, speed, loss, gradients, checkpoints and attempts in one look.",
        (
            *("silence", "speed", "throughput", "loss_nan", "loss_spike", "loss_stuck", "gradients", "skipped"),
            *("spike_guard", "checkpoint_age", "brake"),
        ),
    ),
}


def command_name(name: str) -> str:
    """What one types after `opsctl watch` for this check: `checkpoint-age`."""
    return name.replace("_", "-")
