"""Parse messages of torch's elastic launcher, srun, mpirun and Composer about failed ranks. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from datetime import datetime

from opsctl.diagnosis.triage.lines import read_line
from trainer.formats.attempt.attempt_records import Failure

#: Texts in the first line of each block, and in each single line, that this module parses.
MARKS = (
    b"  time      : ",
    b"  time : ",
    b"srun: error: ",
    b"noticed that process rank ",
    b" crashed with exit code ",
    b") exited with code ",
)
_ROW = re.compile(r"^\s*(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)$")
_RANK = re.compile(r"(\d+)(?: \(local_rank: (\d+)\))?")
_CODE = re.compile(r"(-?\d+)")
_SRUN = re.compile(
    r"^srun: error: (?P<node>[A-Za-z0-9._-]+): tasks? (?P<task>\d+)(?P<others>[^:]*): "
    r"(?:Exited with exit code (?P<code>\d+)|(?P<words>[A-Z][A-Za-z ]+))"
)
_MPI = re.compile(
    r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S+) exited on signal (?P<signal>\d+)"
)
_COMPOSER = re.compile(
    r"\b[Rr]ank (?P<rank>\d{1,8}) (?:\(PID \d+\) exited with|crashed with exit) code (?P<code>-?\d{1,3})\b"
)
_SRUN_TASKS = re.compile(r"^srun: error: (?P<node>[A-Za-z0-9][A-Za-z0-9._-]*): tasks? (?P<tasks>\d[\d,-]*): ")
_MOST_TASKS = 1 << 16
_SRUN_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
_MOST_LINES = 12


def failure_of_block(lines: Sequence[str], reference: datetime) -> Failure | None:
    """Return the failure in a block whose first line is `time : ...`; None for any other text."""
    rows: dict[str, str] = {}
    message = ""
    for line in lines[:_MOST_LINES]:
        text = read_line(line, reference).text
        match = _ROW.match(text)
        if match and match["key"] not in rows:
            rows[match["key"]] = match["value"].strip()
        elif "traceback" in rows and text.startswith("  ") and text.strip():
            message = text.strip()  # the last line of a traceback, as far as these lines go
        elif rows:
            break
    rank = _RANK.match(rows.get("rank", ""))
    if rank is None or "exitcode" not in rows:
        return None
    code = _CODE.match(rows["exitcode"])
    number = int(code[1]) if code else None
    host = rows.get("host", "")
    failed_at = read_line(rows.get("time", ""), reference).at
    return Failure(
        rank=int(rank[1]),
        node=host if host not in ("localhost", "localhost.localdomain") else "",
        local_rank=int(rank[2]) if rank[2] else None,
        exit_code=number if number is not None and number >= 0 else None,
        signal=-number if number is not None and number < 0 else None,
        failed_at=failed_at,
        message=message,
    )


def failure_of_line(line: str, reference: datetime) -> Failure | None:
    """Return the failed rank in a line of mpirun or Composer's launcher; None for any other line."""
    if match := _MPI.search(line):
        return Failure(rank=int(match["rank"]), node=match["node"], signal=int(match["signal"]))
    match = _COMPOSER.search(line)
    if match is None:
        return None
    code = int(match["code"])
    return Failure(
        rank=int(match["rank"]),
        node=read_line(line, reference).node,
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
    )


def task_of_srun(line: str) -> tuple[str, int, int | None] | None:
    """Return (node, exit code, signal) of the failed task in a line of srun; None if srun asked it to end."""
    match = _SRUN.match(line)
    if match is None:
        return None
    if match["code"]:
        code = int(match["code"])
        number = code - 128 if 128 < code < 128 + 65 else None
        return None if number in (signal.SIGTERM, signal.SIGINT) else (match["node"], code, number)
    words = match["words"].strip()
    known = next((number for name, number in _SRUN_SIGNALS.items() if words.startswith(name)), None)
    return None if known is None else (match["node"], 128 + known, int(known))


def tasks_of_srun(line: str) -> tuple[str, tuple[int, ...]]:
    """Return (node, numbers of its tasks) from a line of srun; ("", ()) for any other line."""
    match = _SRUN_TASKS.match(line)
    if match is None:
        return "", ()
    found: list[int] = []
    for part in match["tasks"].strip(",").split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal() and int(last or first) - int(first) < _MOST_TASKS:
            found += range(int(first), int(last or first) + 1)
    return match["node"], tuple(found)
