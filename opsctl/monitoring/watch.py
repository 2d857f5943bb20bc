"""The actions of `opsctl watch` on findings: record them, keep bad nodes out of the queue, send alerts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.diagnosis.nodes.exclusion import keep_and_apply, wanted_by
from opsctl.diagnosis.nodes.node_evidence import append_node_evidence, read_node_evidence, slow_evidence
from opsctl.monitoring import registry
from opsctl.monitoring.alerts.handle import audience_of, notify, reported_once
from opsctl.monitoring.check import Detector
from opsctl.monitoring.checks.nodes import slow_nodes
from opsctl.monitoring.finding import Finding, exit_code
from opsctl.monitoring.gather.space import remember
from opsctl.monitoring.runner import append_to_log, pulse_lines, settings_of
from opsctl.monitoring.snapshot import Snapshot
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView
from opsctl.slurm.backends import client_for


@dataclass(frozen=True)
class Watched:
    """A run, as it was checked."""

    run: RunView
    snapshot: Snapshot
    findings: Sequence[Finding]


def record_findings(runs: Sequence[Watched], detectors: Sequence[Detector], cluster: str | None) -> Iterator[str]:
    """Append the findings to each run's training log, record how full the disks are, and exclude bad nodes.

    Yields a line for whatever fails. A run that was never submitted has no records.
    """
    for one in runs:
        run, name = one.run, one.run.table.name
        if one.snapshot.was_submitted or run.paths.main_log.exists():
            with contextlib.suppress(OSError):  # a full disk is among the findings
                remember(run.paths, one.snapshot)
            try:
                append_to_log(run.paths, pulse_lines(one.findings, one.snapshot.now))
            except OpsctlError as error:
                yield str(error)
        if len(detectors) == len(registry.DETECTORS) and one.snapshot.was_submitted:
            yield from (f"{name}: {line}" for line in _exclude_nodes(run, one.snapshot, cluster))


def _exclude_nodes(run: RunView, snapshot: Snapshot, cluster: str | None) -> Iterator[str]:
    """Record which nodes are slow, and keep what is queued off nodes that are bad."""
    if run.file is None:
        return
    try:
        for slow in slow_nodes(snapshot.timings, settings_of(run).watch.slower_node_percent):
            known = read_node_evidence(run.paths)
            new = slow_evidence(slow.node, slow.ratio, slow.words, snapshot.timed_attempt, slow.at or now(), known)
            if new is not None:
                append_node_evidence(run.paths, new)
    except OSError as error:
        yield f"what counts against nodes cannot be recorded: {error.strerror}"
    try:
        wanted = wanted_by(run.paths, run.file.slurm)
    except OSError as error:
        yield f"cannot exclude bad nodes from queued jobs: {error}"
        return
    yield from keep_and_apply(run.paths, client_for(choose_cluster(cluster, run.paths)), wanted)


def send_alerts(runs: Sequence[Watched], detectors: Sequence[Detector]) -> Iterator[str]:
    """Send new findings to the channels of all these runs, several at once: a slow channel delays no other run.

    Yields a line for each failure. A run that was never submitted notifies no one.
    """
    here = [one for one in runs if one.run.paths.output.is_dir()]
    shared = {one.name for one in detectors if one.is_shared}
    shares = reported_once([one.findings for one in here], [audience_of(one.run) for one in here], shared)
    if not here:
        return
    with ThreadPoolExecutor(8) as pool:
        # A run that leaves something critical to another run does not request its heartbeat.
        calls = [
            pool.submit(_notify, one, share, detectors, exit_code(share) == exit_code(one.findings))
            for one, share in zip(here, shares, strict=True)
        ]
        for call in calls:
            yield from call.result()


def _notify(one: Watched, findings: Sequence[Finding], detectors: Sequence[Detector], is_all: bool) -> list[str]:
    names = {detector.name for detector in detectors}
    is_whole = is_all and len(names) == len(registry.DETECTORS)
    try:
        lines: Sequence[str] = notify(one.run, findings, names, one.snapshot.now, is_whole).lines
    except (OpsctlError, OSError) as error:
        lines = (str(error),)
    return [f"{one.run.table.name}: {line}" for line in lines]
