"""The data from Slurm: the run's jobs, the nodes of the running one, and those that the next may get."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from opsctl.core.errors import SlurmError, SlurmUnreachable
from opsctl.core.timestamps import now
from opsctl.monitoring.gather import Asked
from opsctl.monitoring.snapshot import Part, PartitionNodes, Snapshot, Whereabouts
from opsctl.run.attempts import events as attempts_file
from opsctl.run.attempts.hidden_jobs import unseen
from opsctl.run.state.identity import Standing, before_the_move, is_here, place_of
from opsctl.slurm.client import SlurmReader
from opsctl.slurm.nodes import Node, expand_nodes, in_partition


def look(seen: Snapshot, asked: Asked) -> Snapshot:
    """Add the requested parts that come from Slurm. An unreachable Slurm is recorded, not raised."""
    parts, slurm = asked.parts, asked.slurm
    if not parts & (Part.QUEUE | Part.NODES | Part.PARTITION):
        return seen
    queue = _queue(seen, asked) if parts & (Part.QUEUE | Part.NODES) else seen
    seen = queue if Part.QUEUE in parts else seen
    wanted = queue.running.nodes if Part.NODES in parts and queue.running is not None else ""
    if not wanted and Part.PARTITION not in parts:
        return seen
    if queue.blind is not None:  # who does not answer one question has no time left for the next
        return _without_nodes(seen, parts, queue.blind)
    try:
        found = slurm.nodes(None if Part.PARTITION in parts else wanted)
    except SlurmError as error:
        return _without_nodes(seen, parts, str(error))
    if Part.PARTITION in parts:
        seen = replace(seen, partition=_partition(found, asked))
        names = set(expand_nodes(wanted or ""))
        found = [node for node in found if node.name in names]
    return replace(seen, nodes=tuple(found))


def _without_nodes(seen: Snapshot, parts: Part, why: str) -> Snapshot:
    blind = tuple((part, why) for part in (Part.NODES, Part.PARTITION) if part in parts)
    return replace(seen, problems=(*seen.problems, *blind))


def _queue(seen: Snapshot, asked: Asked) -> Snapshot:
    paths, known, slurm = asked.paths, asked.known, asked.slurm
    place = place_of(paths)
    if place.standing not in (Standing.SAME, Standing.UNBOUND):
        seen = replace(seen, whereabouts=Whereabouts(paths.output, place))
    seen = replace(seen, was_submitted=bool(known.run_id or known.chains))
    if not seen.was_submitted:
        return seen
    began = now()
    try:
        queue = slurm.jobs()
        hidden = unseen(known.chains, lambda: attempts_file.read(paths), queue, slurm)
    except SlurmUnreachable as error:
        return replace(seen, blind=str(error))
    age_s = _age_s(slurm)
    seen = replace(
        seen,
        jobs=tuple(known.own(queue)),
        unseen=hidden,
        queue_age_s=age_s,
        queue_asked_at=began - timedelta(seconds=age_s),
    )
    before = before_the_move(paths) if seen.jobs else ""
    outputs = {chain.chain: chain.output or before for chain in known.chains}
    looked_at = [(outputs.get(job.array_job_id, ""), job) for job in seen.jobs]
    elsewhere = tuple((folder, job) for folder, job in looked_at if not is_here(folder, paths))
    return replace(seen, whereabouts=Whereabouts(paths.output, place, elsewhere)) if elsewhere else seen


def _age_s(slurm: SlurmReader) -> float:
    """Return the age of the last answer about jobs, 0 for a new one."""
    return float(getattr(slurm, "queue_age_s", 0.0))


def _partition(nodes: Iterable[Node], asked: Asked) -> PartitionNodes | None:
    """Return the nodes that the run may get; None if they are unknown."""
    file = asked.run.file
    if file is None:
        return None
    name, there = in_partition(nodes, file.slurm.partition)
    excluded = set(expand_nodes(file.slurm.exclude or ""))
    there = [node for node in there if node.name not in excluded]
    if not there:
        return None
    bad = [node for node in there if node.is_out_of_service]
    example = f"{bad[0].name} is {bad[0].state}{f': {bad[0].reason}' if bad[0].reason else ''}" if bad else ""
    return PartitionNodes(name, len(there), len(there) - len(bad), example)
