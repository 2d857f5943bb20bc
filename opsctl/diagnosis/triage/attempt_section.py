"""Which part of the training log is one attempt's: from its start line to the next attempt's, found from the end."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from opsctl.core.files.trusted import open_file
from opsctl.diagnosis.triage.log_part import LogPart
from opsctl.run.logs.line_text import is_hole

_STEP_BYTES = 8 << 20
_OVERLAP_BYTES = 4096
#: As `logs.attempt_lines.write_attempt_start` writes it.
_START = re.compile(rb"^START TIME: \S+ attempt (\d+), job \S+ \((\d+)[,)]", re.MULTILINE)


def part_of_attempt(root: Path, log: Path, number: int, job_id: int, seconds: float) -> LogPart | None:
    """The attempt's part of `log`; None where its start line is not there, or not found in time. Raises OSError."""
    ends_at = time.monotonic() + seconds
    fd = open_file(root, log)
    try:
        end = upper = os.fstat(fd).st_size
        while upper > 0 and time.monotonic() < ends_at:
            lower = max(0, upper - _STEP_BYTES)
            if lower and is_hole(fd, lower - 1, upper + _OVERLAP_BYTES):
                upper = lower
                continue
            # From a byte before, so that a line that begins here is seen to; at the beginning any line does.
            before = os.pread(fd, 1, lower - 1) if lower else b"\n"
            data = before + os.pread(fd, upper - lower + _OVERLAP_BYTES, lower)
            for match in reversed(list(_START.finditer(data))) if b"START TIME: " in data else ():
                at = lower + match.start() - 1
                if at >= upper:
                    continue  # the step before this one had it
                if (int(match[1]), int(match[2])) == (number, job_id):
                    return LogPart(log, at, end, root)
                end = at
            upper = lower
        return None
    finally:
        os.close(fd)
