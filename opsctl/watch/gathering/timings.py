"""How long the ranks of the running attempt compute, as their nodes' samplers write it down."""

from __future__ import annotations

from dataclasses import replace

from opsctl.attempts import events as attempts_file
from opsctl.records.node_samples import rank_timings
from opsctl.watch.gathering.asked import Asked
from opsctl.watch.snapshot import Snapshot


def look(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.TIMINGS."""
    attempts = seen.attempts or tuple(attempts_file.read(asked.paths))
    if not attempts or not attempts[-1].is_open:
        return seen
    newest = attempts[-1]
    found = rank_timings(asked.paths.output, asked.paths.attempt_folder(newest.job_id))
    return replace(seen, timings=found, timed_attempt=newest.id)
