"""How long the ranks of the running attempt compute, as their nodes' samplers write it down."""

from __future__ import annotations

from dataclasses import replace

from opsctl.diagnosis.nodes.node_evidence import rank_timings
from opsctl.monitoring.gather.asked import Asked
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.attempts import events as attempts_file


def look(seen: Snapshot, asked: Asked) -> Snapshot:
    """Part.TIMINGS."""
    attempts = seen.attempts or tuple(attempts_file.read(asked.paths))
    if not attempts or not attempts[-1].is_open:
        return seen
    newest = attempts[-1]
    found = rank_timings(asked.paths.output, asked.paths.attempt_folder(newest.job_id))
    return replace(seen, timings=found, timed_attempt=newest.id)
