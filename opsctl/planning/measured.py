"""What the training log has measured, in place of what the run file reckons with."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from opsctl.logs.records import Measured
from opsctl.runs.load import LoadedRun

MEASURED_KEYS = ("seconds_per_iteration", "evaluation_seconds", "save_seconds")


def with_measured(loaded: LoadedRun, seen: Measured) -> LoadedRun:
    """`loaded` with `[expect]` overridden by every duration that the log shows."""
    known = {key: value for key in MEASURED_KEYS if (value := getattr(seen, key)) is not None}
    file = msgspec.structs.replace(loaded.file, expect=msgspec.structs.replace(loaded.file.expect, **known))
    return replace(loaded, file=file)
