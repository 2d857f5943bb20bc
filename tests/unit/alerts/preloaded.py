"""What every sender imports. A fork server imports this once."""

from __future__ import annotations

from opsctl.alerts import send as send
from opsctl.alerts.try_once import load_senders

load_senders()
