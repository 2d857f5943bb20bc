"""Update the exclusion list, and keep submissions and queued jobs off its nodes.

Called by a submission, by a job after a bad ending, by every regular check, and by `opsctl exclude`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError, SlurmError, SlurmUnreachable
from opsctl.core.files.state_files import locked, read_state, write_state
from opsctl.core.timestamps import iso, now
from opsctl.diagnosis.nodes.exclusion_list import (
    BY_EVIDENCE,
    LOCK_WAIT_S,
    Decision,
    ExcludedNodes,
    Exclusion,
    Place,
    changing,
    evidence_for,
    place_of,
    read_evidence_of,
    read_excluded,
    write_excluded,
)
from opsctl.diagnosis.nodes.judging import End, ends_of, judge, used_despite_exclusion
from opsctl.diagnosis.nodes.node_evidence import AHEAD, NodeEvidence, Policy
from opsctl.run.attempts import events as attempts_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import nodes_table
from opsctl.run.config.schema import NodesTable, SlurmTable
from opsctl.run.state.chains import Chain, recorded
from opsctl.run.state.revisions import newest_whole
from opsctl.slurm.client import SlurmClient, SlurmReader
from opsctl.slurm.nodes import Node, expand_nodes, in_partition


class QueueExcludes(msgspec.Struct, frozen=True):
    """The nodes that queued chains avoid because of the list, if changed since their submission."""

    chains: dict[str, str] = {}


def apply_to_queue(paths: RunPaths, slurm: SlurmClient, excluded: Sequence[str]) -> list[str]:
    """Exclude `excluded` from the caller's queued chains, in addition to their own nodes. Returns messages.

    Slurm is asked only for changes. Only their owners can change the jobs of others, so their records stay. A message
    names each chain that Slurm refuses to change. Raises OpsctlError, SlurmUnreachable, OSError.
    """
    me, known = account_name(), recorded(paths)
    if not known.chains:
        return []
    chains = {chain.chain: chain for chain in known.chains}
    applied = read_state(paths.output, paths.queue_excludes, QueueExcludes) or QueueExcludes()
    if not excluded and not applied.chains and not any(chain.listed for chain in known.chains[-20:]):
        return []
    mine = [job for job in known.own(slurm.jobs(users=[me])) if job.user == me]
    there = {job.array_job_id for job in mine}
    gone = {str(chain.chain) for chain in known.chains if chain.user == me and chain.chain not in there}
    pending = [job for job in mine if job.is_pending]
    now_kept: dict[str, str] = {}
    lines = []
    try:
        for array in sorted({job.array_job_id for job in pending} & set(chains)):
            before = applied.chains.get(str(array), chains[array].listed or "")
            try:
                if set(before.split(",")) - {""} != set(excluded):
                    tasks = [job.tasks_id for job in pending if job.array_job_id == array]
                    lines.append(_exclude_from(paths, chains[array], tasks, slurm, excluded))
            except SlurmUnreachable:
                raise
            except SlurmError as error:
                lines.append(f"chain {array} cannot exclude {', '.join(excluded) or 'fewer nodes'}: {error}")
            else:
                now_kept[str(array)] = ",".join(excluded)
    finally:
        _record(paths, now_kept, gone)
    return lines


def _exclude_from(paths: RunPaths, chain: Chain, tasks: list[str], slurm: SlurmClient, excluded: Sequence[str]) -> str:
    names = sorted({*_own(paths, chain), *excluded})
    slurm.exclude(tasks, ",".join(names))
    return f"chain {chain.chain} now excludes {', '.join(names) or 'no nodes'}"


def _record(paths: RunPaths, now_kept: dict[str, str], gone: set[str]) -> None:
    """Update these chains in the record, under a lock: several users' jobs write it."""

    def chains() -> tuple[dict[str, str], dict[str, str]]:
        before = (read_state(paths.output, paths.queue_excludes, QueueExcludes) or QueueExcludes()).chains
        return before, {chain: nodes for chain, nodes in before.items() if chain not in gone} | now_kept

    before, after = chains()
    if before == after:
        return  # no lock, so that a reader needs no permission to write
    with locked(paths.output, paths.queue_excludes.with_suffix(".lock"), LOCK_WAIT_S, "keep the queue off nodes"):
        write_state(paths.output, paths.queue_excludes, QueueExcludes(chains()[1]))


def _own(paths: RunPaths, chain: Chain) -> set[str]:
    """Return the nodes that the chain excludes independently of the list."""
    folded = chain.own_exclude
    if folded is None:  # submitted by a release without the list
        revision = newest_whole(paths)
        of_file = revision.file.slurm.exclude if revision is not None else None
        folded = ",".join(filter(None, (of_file, chain.exclude)))
    return set(expand_nodes(folded or ""))


@dataclass(frozen=True)
class Wanted:
    """The settings of a run that the list depends on."""

    partition: str | None  # [slurm] partition
    nodes: int  # of each job of the run
    own_exclude: str | None = None  # folded list of nodes that it always excludes

    @classmethod
    def of(cls, slurm: SlurmTable, nodes: int | None = None, exclude: str | None = None) -> Wanted:
        """Return the settings of a run file. nodes, exclude: those of a chain's record."""
        own = ",".join(filter(None, (slurm.exclude, exclude)))
        return cls(slurm.partition, (nodes or slurm.nodes) + slurm.spare, own or None)

    def nodes_for(self, slurm: SlurmReader) -> tuple[str, list[Node]]:
        """Return the partition's name and the nodes that the run may be given. Raises SlurmError."""
        name, there = in_partition(slurm.nodes(), self.partition)
        never = set(expand_nodes(self.own_exclude or ""))
        return name, [node for node in there if node.name not in never]


@dataclass(frozen=True)
class Kept:
    """The result of an update of the list."""

    excluded: tuple[str, ...] = ()  # known to Slurm, to avoid now
    news: tuple[str, ...] = ()  # lines for the log or the screen
    used: tuple[str, ...] = ()  # messages on listed nodes that the run still uses
    problem: str = ""  # why the list could not be updated

    @property
    def lines(self) -> tuple[str, ...]:
        """Return all messages for the user who submits."""
        return (*self.news, *(line for line in self.used if line not in self.news), *filter(None, (self.problem,)))


def keep(paths: RunPaths, slurm: SlurmReader, wanted: Wanted, table: NodesTable | None = None) -> Kept:
    """Update the list by evidence and attempts; return the nodes to avoid. Raises OpsctlError and OSError."""
    table = nodes_table() if table is None else table
    place, at = place_of(paths, table), now()
    evidence = evidence_for(paths, place)
    ends = [end for end in ends_of(attempts_file.read(paths)) if end.at <= at + AHEAD]
    known = read_excluded(place)
    if not known.nodes and not evidence and not any(end.blamed for end in ends):
        return Kept()
    name, there = wanted.nodes_for(slurm)
    new: list[Exclusion] = []
    problem = ""
    policy = Policy(most_excluded_percent=table.most_excluded_percent, needed=wanted.nodes)
    if table.auto:
        try:
            known, new = _judged(place, evidence, ends, [node.name for node in there], policy, at)
        except (OpsctlError, OSError) as error:
            problem = f"the exclusion list was not updated: {error}"
    excluded, used = _stay_off(known, there, policy, at)
    news = [_line(one, used.get(one.node, "")) for one in new]
    serving = {node.name for node in there if not node.is_out_of_service}
    if len(serving - set(excluded)) < wanted.nodes and serving & set(excluded):
        news.append(
            f"{len(serving & set(excluded))} of the {len(serving)} nodes in service of {name} are excluded, but the "
            f"run needs {wanted.nodes} nodes. To allow one: opsctl exclude remove NODE"
        )
    lines = tuple(_line(one, used[one.node]) for one in known.in_force(at) if one.node in used)
    return Kept(excluded, tuple(news), lines, problem)


def wanted_by(paths: RunPaths, slurm: SlurmTable, array: int | None = None) -> Wanted:
    """Return the settings of the run's newest chain, or of chain `array`. slurm: the run file's. Raises OSError."""
    chains = [chain for chain in recorded(paths).chains if array is None or chain.chain == array]
    return Wanted.of(slurm, chains[-1].nodes, chains[-1].exclude) if chains else Wanted.of(slurm)


def excluded_now(paths: RunPaths, slurm: SlurmReader, wanted: Wanted) -> tuple[str, ...]:
    """Return the nodes that a submission would exclude by the current list, without judging or writing."""
    return _applied(paths, slurm, wanted)[0]


def used_now(paths: RunPaths, slurm: SlurmReader, wanted: Wanted) -> dict[str, str]:
    """Return listed node -> reason, for nodes that the run uses despite the current list."""
    return _applied(paths, slurm, wanted)[1]


def _applied(paths: RunPaths, slurm: SlurmReader, wanted: Wanted) -> tuple[tuple[str, ...], dict[str, str]]:
    table, at = nodes_table(), now()
    known = read_excluded(place_of(paths, table))
    if not known.in_force(at):
        return (), {}
    policy = Policy(most_excluded_percent=table.most_excluded_percent, needed=wanted.nodes)
    return _stay_off(known, wanted.nodes_for(slurm)[1], policy, at)


def _stay_off(
    known: ExcludedNodes, nodes: Sequence[Node], policy: Policy, at: datetime
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return (nodes to avoid, listed node -> reason for nodes to use anyway)."""
    standing = known.in_force(at)
    used, names = used_despite_exclusion(standing, nodes, policy), {node.name for node in nodes}
    return tuple(sorted(one.node for one in standing if one.node in names and one.node not in used)), used


def add(place: Place, nodes: Sequence[str], why: str, until: datetime) -> list[Exclusion]:
    """Exclude nodes as a person. Raises OpsctlError if the list cannot be changed; OSError."""
    at, me = now(), account_name()
    with changing(place, "exclude nodes") as known:
        before = {one.node: one for one in known.nodes}
        added = [
            Exclusion(
                node=node,
                since=at,
                until=until,
                by=me,
                why=why,
                evidence=before[node].evidence if node in before else (),
                times=before[node].times if node in before else 0,
            )
            for node in dict.fromkeys(nodes)
        ]
        decisions = [
            Decision(at=at, node=one.node, what="excluded", by=me, why=why, until=until, evidence=one.evidence)
            for one in added
        ]
        write_excluded(place, list({**before, **{one.node: one for one in added}}.values()), decisions)
    return added


def remove(place: Place, nodes: Sequence[str], ends: Iterable[End] = ()) -> list[Exclusion]:
    """End exclusions and forgive earlier evidence. Raises OpsctlError, and ends none, if one is not excluded."""
    at, me = now(), account_name()
    with changing(place, "end exclusions") as known:
        before = {one.node: one for one in known.nodes}
        missing = [node for node in nodes if node not in before or not before[node].stands(at)]
        if missing:
            raise OpsctlError(f"not excluded: {', '.join(missing)}. To see the list: opsctl exclude list")
        seen = [(one.node, one.at) for one in read_evidence_of(place)]
        seen += [(node, end.at) for end in ends for node in end.blamed]
        newest = {node: moment for node, moment in sorted(seen) if at < moment <= at + AHEAD}
        ended = [
            msgspec.structs.replace(before[node], removed_at=at, removed_by=me, seen_until=newest.get(node))
            for node in dict.fromkeys(nodes)
        ]
        decisions = [Decision(at=at, node=one.node, what="removed", by=me, why=one.why) for one in ended]
        write_excluded(place, list({**before, **{one.node: one for one in ended}}.values()), decisions)
    return ended


def keep_and_apply(paths: RunPaths, slurm: SlurmClient, wanted: Wanted, reader: SlurmReader | None = None) -> list[str]:
    """Update the list and the queue, and return messages. Never raises for expected errors."""
    lines: list[str] = []
    try:
        kept = keep(paths, reader or slurm, wanted)
        lines = [*kept.news, *([kept.problem] if kept.problem else [])]
        return [*lines, *apply_to_queue(paths, slurm, kept.excluded)]
    except OpsctlError as error:
        return [*lines, f"cannot exclude bad nodes from queued jobs: {error}"]
    except OSError as error:
        why = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return [*lines, f"cannot exclude bad nodes from queued jobs: {why}"]


def _judged(
    place: Place,
    evidence: Iterable[NodeEvidence],
    ends: Sequence[End],
    partition: Sequence[str],
    policy: Policy,
    at: datetime,
) -> tuple[ExcludedNodes, list[Exclusion]]:
    """Judge the list, write it if it changed, and return it with its new exclusions."""
    before = read_excluded(place)
    if judge(evidence, ends, at, partition, policy, before.nodes) == before.nodes:
        return before, []  # nothing to write, so that a reader needs no permission to write
    with changing(place, "update it") as known:
        nodes = judge(evidence, ends, at, partition, policy, known.nodes)
        if nodes == known.nodes:
            return known, []
        was = {one.node: one for one in known.nodes}
        new = [one for one in nodes if one.stands(at) and not (one.node in was and was[one.node].stands(at))]
        write_excluded(place, nodes, [_decision(one, at) for one in new])
        return ExcludedNodes(nodes=nodes), new


def _decision(one: Exclusion, at: datetime) -> Decision:
    until, evidence = one.until, one.evidence
    return Decision(at=at, node=one.node, what="excluded", by=BY_EVIDENCE, why=one.why, until=until, evidence=evidence)


def _line(one: Exclusion, used_because: str) -> str:
    first = f" ({one.evidence[0]})" if one.evidence else ""
    if used_because:
        return f"node {one.node} is used despite its exclusion ({one.why}{first}): {used_because}"
    times = f", exclusion number {one.times}" if one.times > 1 else ""
    return f"node {one.node} is excluded until {iso(one.until, 'minutes')}{times}: {one.why}{first}"


def read_listed(paths: RunPaths) -> tuple[Place, ExcludedNodes]:
    """Return the list that applies to the run, and its place. Raises like `keep`, but needs no Slurm."""
    place = place_of(paths, nodes_table())
    return place, read_excluded(place)
