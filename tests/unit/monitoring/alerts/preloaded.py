"""What every sender imports. A fork server imports this once."""

from __future__ import annotations

from opsctl.monitoring.alerts.send_once import load_senders

load_senders()
