"""List nodes with their state, jobs, evidence and exclusion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from opsctl.core.output import printable
from opsctl.core.timestamps import to_the_second
from opsctl.diagnosis.nodes.exclusion import Wanted, read_listed, used_now
from opsctl.diagnosis.nodes.exclusion_list import Exclusion, evidence_for, evidence_line, place_of
from opsctl.diagnosis.nodes.judging import score_of, weight_of
from opsctl.diagnosis.nodes.node_evidence import NodeEvidence
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import nodes_table
from opsctl.slurm.client import SlurmReader
from opsctl.slurm.nodes import Node, expand_nodes, in_partition
from opsctl.slurm.types import Job

#: The state of a node that Slurm does not have.
NOT_THERE = "not there"
#: Lines of evidence shown for each node.
_SHOWN = 10


class JobOn(Struct, frozen=True, kw_only=True):
    """A job that runs on a node."""

    job_id: Annotated[int, Meta(description="Slurm's id.")]
    job: Annotated[str, Meta(description="As squeue shows it.")]
    user: Annotated[str, Meta(description="Its owner.")]
    state: Annotated[str, Meta(description="Its state in Slurm.")]


class SeenNode(Struct, frozen=True, kw_only=True):
    """A node with its state, jobs and evidence."""

    node: Annotated[str, Meta(description="Its name.")]
    state: Annotated[str, Meta(description="Slurm's long state; `not there` if Slurm does not have it.")]
    reason: Annotated[str, Meta(description="Slurm's reason for the state; else empty.")]
    is_out_of_service: Annotated[bool, Meta(description="True if Slurm starts no jobs on it, or it does not answer.")]
    jobs: Annotated[tuple[JobOn, ...], Meta(description="Its jobs, if Slurm shows them.")]
    score: Annotated[float, Meta(description="Current weight of all evidence; 1 excludes the node.")]
    evidence: Annotated[tuple[str, ...], Meta(description="Evidence lines, the newest first.")]
    exclusion: Annotated[Exclusion | None, Meta(description="Its current exclusion; null without one.")]
    kept_in: Annotated[str, Meta(description="Why the run uses it despite its exclusion; else empty.")] = ""


def list_nodes(
    paths: RunPaths, slurm: SlurmReader, wanted: Wanted, names: Sequence[str], now: datetime
) -> list[SeenNode]:
    """List these nodes, or the partition's and all with evidence. Raises OpsctlError, SlurmError, OSError."""
    everywhere = slurm.nodes()
    by_name = {node.name: node for node in everywhere}
    evidence = by_node(evidence_for(paths, place_of(paths, nodes_table())))
    standing = {one.node: one for one in read_listed(paths)[1].nodes if one.stands(now)}
    on = _jobs_on(slurm.jobs())
    there = [node.name for node in in_partition(everywhere, wanted.partition)[1]]
    known = sorted(node for node, lines in evidence.items() if any(weight_of(one, now) >= 0.01 for one in lines))
    chosen = list(dict.fromkeys(names or [*there, *known, *standing]))
    used = used_now(paths, slurm, wanted) if standing else {}
    seen = (_seen(name, by_name.get(name), evidence.get(name, []), standing.get(name), on, now) for name in chosen)
    return [msgspec.structs.replace(one, kept_in=used.get(one.node, "")) for one in seen]


def by_node(evidence: Sequence[NodeEvidence]) -> dict[str, list[NodeEvidence]]:
    """Return each node's lines, the newest first."""
    found: dict[str, list[NodeEvidence]] = defaultdict(list)
    for one in sorted(evidence, key=lambda one: one.at, reverse=True):
        found[one.node].append(one)
    return dict(found)


def node_lines(seen: Sequence[SeenNode]) -> list[str]:
    """Return a line for each node, then one for its exclusion and each line of evidence."""
    width = max((len(one.node) for one in seen), default=0)
    states = max((len(one.state) for one in seen), default=0)
    lines = []
    for one in seen:
        jobs = ", ".join(f"{job.job} ({job.user})" for job in one.jobs) or "-"
        reason = f"  {one.reason}" if one.reason else ""
        lines.append(f"{one.node:<{width}}  {one.state:<{states}}  {jobs}{reason}".rstrip())
        if one.exclusion is not None:
            out = f"the run still uses it ({one.kept_in})" if one.kept_in else "excluded"
            lines.append(f"    {out}, until {to_the_second(one.exclusion.until):%Y-%m-%d %H:%M}: {one.exclusion.why}")
        lines += [f"    {line}" for line in one.evidence]
    return [printable(line) for line in lines]


def _seen(
    name: str,
    node: Node | None,
    evidence: Sequence[NodeEvidence],
    exclusion: Exclusion | None,
    on: dict[str, list[Job]],
    now: datetime,
) -> SeenNode:
    return SeenNode(
        node=name,
        state=node.state if node is not None else NOT_THERE,
        reason=node.reason if node is not None else "",
        is_out_of_service=node is None or node.is_out_of_service,
        jobs=tuple(
            JobOn(job_id=job.job_id, job=job.display_id, user=job.user, state=job.state) for job in on.get(name, [])
        ),
        score=round(score_of(evidence, now), 3),
        evidence=tuple(evidence_line(one) for one in evidence[:_SHOWN]),
        exclusion=exclusion,
    )


def _jobs_on(jobs: Sequence[Job]) -> dict[str, list[Job]]:
    found: dict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.nodes and not job.is_pending:
            for name in expand_nodes(job.nodes):
                found[name].append(job)
    return found
