"""The lines with which `opsctl job run` begins and ends an attempt in the training log."""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

from opsctl.core.timestamps import iso
from trainer.formats.logs.log_lines import Stamp, parse_moment

#: In every such line: what a search through a log's bytes looks for.
MARKS = (b" TIME: ",)
_START, _END = "START TIME", "END TIME"
_LINE = re.compile(rf"(?P<what>{_START}|{_END}): (?P<at>\S+) attempt ")

_START_LINE = re.compile(
    rf"{_START}: (?P<at>\S+) attempt (?P<attempt>\d{{1,9}}), job (?P<job>\S+) "
    r"\((?P<job_id>\d{1,18})(?:, requeued (?P<requeues>\d{1,9}) times)?\), revision (?P<revision>\S*), "
    r"from (?:the beginning|iteration (?P<iteration>\d{1,18})), nodes (?P<nodes>.*)"
)


class AttemptStart(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt begins."""

    at: datetime  # with zone
    attempt: int
    job: str  # as squeue shows it
    job_id: int
    requeues: int  # of this job, before
    revision: str
    iteration: int | None  # that it goes on from; None: the beginning
    nodes: tuple[str, ...]


class AttemptEnd(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt has ended."""

    at: datetime  # with zone
    attempt: int
    reason: str
    exit_code: int | None
    checkpoint: int | None  # iteration of the last whole one
    first_failure: str = ""  # in a few words


def write_attempt_start(start: AttemptStart) -> str:
    """One line."""
    origin = "the beginning" if start.iteration is None else f"iteration {start.iteration}"
    again = f", requeued {start.requeues} times" if start.requeues else ""
    return (
        f"{_START}: {iso(start.at)} attempt {start.attempt}, job {start.job} ({start.job_id}{again}), "
        f"revision {start.revision}, from {origin}, nodes {' '.join(start.nodes)}"
    )


def write_attempt_end(end: AttemptEnd) -> str:
    """One line."""
    failed = f", first failure: {end.first_failure}" if end.first_failure else ""
    saved = "none" if end.checkpoint is None else f"iteration {end.checkpoint}"
    return (
        f"{_END}: {iso(end.at)} attempt {end.attempt} ended: {end.reason}, "
        f"exit code {end.exit_code}, last checkpoint {saved}{failed}"
    )


def parse_attempt_start(text: str) -> AttemptStart | None:
    """What the line says of an attempt that begins, else None."""
    match = _START_LINE.match(text) if text.startswith(_START) else None
    at = parse_moment(match["at"]) if match else None
    if match is None or at is None:
        return None
    return AttemptStart(
        at=at,
        attempt=int(match["attempt"]),
        job=match["job"],
        job_id=int(match["job_id"]),
        requeues=int(match["requeues"] or 0),
        revision=match["revision"],
        iteration=int(match["iteration"]) if match["iteration"] else None,
        nodes=tuple(match["nodes"].split()),
    )


def parse_attempt_time(text: str) -> Stamp | None:
    """When an attempt began or ended, else None."""
    match = _LINE.match(text) if " TIME: " in text else None
    at = parse_moment(match["at"]) if match else None
    return Stamp(match["what"], at) if match and at else None
