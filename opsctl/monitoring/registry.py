"""All checks: `opsctl status` shows what they find, `opsctl watch NAME` runs one of them."""

from __future__ import annotations

from opsctl.monitoring.check import Detector
from opsctl.monitoring.checks.checkpoints import backups, checkpoint_age, checkpoint_files, checkpoints, hub_sync
from opsctl.monitoring.checks.disk import filesystem, filling, purge
from opsctl.monitoring.checks.loss import gradients, loss_nan, loss_spike, loss_stuck, skipped, spike_guard
from opsctl.monitoring.checks.nodes import clocks, nodes, slow_node, spare_nodes
from opsctl.monitoring.checks.records import identity, kill_switch, lease, revision, unpublished
from opsctl.monitoring.checks.services import channels, cron, cron_jobs
from opsctl.monitoring.checks.speed import silence, speed, throughput
from opsctl.monitoring.checks.training import must_run, no_progress, queue, training, waiting

#: In the order in which equally bad findings are shown.
DETECTORS: tuple[Detector, ...] = (
    *(training, must_run, waiting, queue, revision, checkpoints, identity, lease),
    *(nodes, spare_nodes, slow_node, silence, speed, throughput),
    *(loss_nan, loss_spike, spike_guard, loss_stuck, gradients, skipped),
    *(checkpoint_age, checkpoint_files, backups, no_progress, filesystem, filling, purge),
    *(cron, cron_jobs, hub_sync, channels, clocks, kill_switch, unpublished),
)
#: Commands for several checks that a user asks together: name -> (help, checks).
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "progress": (
        "Check log, speed, loss, gradients and checkpoints.",
        (
            *("silence", "speed", "throughput", "loss_nan", "loss_spike", "loss_stuck", "gradients", "skipped"),
            *("spike_guard", "checkpoint_age", "no_progress"),
        ),
    ),
}


def command_name(name: str) -> str:
    """Return the command of a check after `opsctl watch`: `checkpoint-age`."""
    return name.replace("_", "-")
