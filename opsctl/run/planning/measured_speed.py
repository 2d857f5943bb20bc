"""What the training log has measured, in place of what the run file reckons with."""

from __future__ import annotations

import msgspec

from opsctl.run.config.schema import ExpectTable, Reckoning
from opsctl.run.logs.records import Measured


def with_measured(expect: ExpectTable, seen: Measured) -> Reckoning:
    """`[expect]` overridden by every duration that the log shows."""
    keys = [key for key in Reckoning.__struct_fields__ if key in Measured.__struct_fields__ and key != "tflops"]
    known = {key: value for key in keys if (value := getattr(seen, key)) is not None}
    return Reckoning(**{**msgspec.structs.asdict(expect), **known})
