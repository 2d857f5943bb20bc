"""All checks: `opsctl status` shows what they find, `opsctl watch` runs those that have a command."""

from __future__ import annotations

from opsctl.watch.detector import Detector
from opsctl.watch.detectors import (
    brake,
    checkpoints,
    identity,
    kill_switch,
    lease,
    nodes,
    revision,
    silence,
    training,
    unpublished,
)

#: In the order in which equally bad findings are shown.
DETECTORS: tuple[Detector, ...] = (
    training.DETECTOR,
    revision.DETECTOR,
    checkpoints.DETECTOR,
    identity.DETECTOR,
    lease.DETECTOR,
    nodes.DETECTOR,
    silence.DETECTOR,
    brake.DETECTOR,
    kill_switch.DETECTOR,
    unpublished.DETECTOR,
)
