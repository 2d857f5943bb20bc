"""What the training log has measured, in place of what the run file reckons with."""

from __future__ import annotations

import msgspec

from opsctl.logs.records import Measured
from opsctl.runs.schema import ExpectTable

MEASURED_KEYS = ("seconds_per_iteration", "evaluation_seconds", "save_seconds")


def with_measured(expect: ExpectTable, seen: Measured) -> ExpectTable:
    """`[expect]` overridden by every duration that the log shows."""
    known = {key: value for key in MEASURED_KEYS if (value := getattr(seen, key)) is not None}
    return msgspec.structs.replace(expect, **known)
