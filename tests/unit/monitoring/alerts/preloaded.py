"""What every sender imports. A fork server imports this once."""

from __future__ import annotations

from opsctl.monitoring.alerts.send import _load_senders

_load_senders()
