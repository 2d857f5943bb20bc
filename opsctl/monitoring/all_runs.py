"""Looking at many runs in one pass: each Slurm is asked once, and a run that cannot be looked at stops no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from opsctl.core.dirwalk.file_system import FileSystems
from opsctl.monitoring.check import Detector, run_detectors
from opsctl.monitoring.checks.training import training
from opsctl.monitoring.finding import (
    Finding,
    PrintedFinding,
    Severity,
    SeverityWord,
    printed_finding,
    severity_word,
    worst_of,
)
from opsctl.monitoring.runner import gather, in_words, settings_of
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.register import KnownRun, refuse_anothers_folder
from opsctl.run.state.run_view import RunView, view_known
from opsctl.slurm.cache import CachedSlurm
from opsctl.slurm.client import SlurmReader
from opsctl.slurm.cluster import Cluster

#: The name under which a run that cannot be looked at is found.
CHECK = "run"


@dataclass(frozen=True)
class RunSnapshot:
    """One run of several, as it was found."""

    name: str
    output: Path | None  # None: not known
    run: RunView | None = None  # None, and no snapshot: it could not be looked at
    snapshot: Snapshot | None = None
    problem: str = ""  # why not
    is_gone: bool = False  # nothing of it is where it was


class PrintedRun(Struct, frozen=True, kw_only=True):
    """The findings of one run of several."""

    name: Annotated[str, Meta(description="The run's name.")]
    output: Annotated[str | None, Meta(description="Its output folder; null if unknown.")]
    worst: Annotated[SeverityWord, Meta(description="The worst of its findings.")]
    findings: Annotated[list[PrintedFinding], Meta(description="Findings of the checks.")]


def snapshot_all(
    known: Iterable[KnownRun],
    cluster_of: Callable[[RunPaths], Cluster],
    client: Callable[[Cluster], SlurmReader],
    parts: Part = Part.ALL,
) -> list[RunSnapshot]:
    """Return each run of the list as it is now, in its order; a folder that is in it twice counts once.

    client: makes one of a cluster for each question, of which there is at most one of a kind to each.
    """
    systems, seen = FileSystems(), set()
    views = []
    for one in known:
        found = _viewed(one, systems)
        is_forgotten = found.is_gone and found.output is None  # this account alone knew it, and nothing ever ran
        if not is_forgotten and (found.output is None or found.output not in seen):
            seen.add(found.output)
            views.append(found)
    runs = [found.run for found in views if found.run is not None]
    snapshots = iter(gather_many(runs, cluster_of, client, parts))
    return [found if found.run is None else _with(found, next(snapshots)) for found in views]


def gather_many(
    runs: Sequence[RunView],
    cluster_of: Callable[[RunPaths], Cluster],
    client: Callable[[Cluster], SlurmReader],
    parts: Part = Part.ALL,
) -> list[Snapshot]:
    """Return a snapshot of each run, in order. What cannot be read is listed in its `problems`. See `snapshot_all`."""
    clients: dict[Cluster, CachedSlurm] = {}
    snapshots = []
    for run in runs:
        cluster = cluster_of(run.paths)
        if cluster not in clients:
            clients[cluster] = CachedSlurm(partial(client, cluster))
        snapshots.append(gather(run, clients[cluster], parts, is_tolerant=True))
    return snapshots


def findings_in(look: RunSnapshot, detectors: Iterable[Detector]) -> list[Finding]:
    """Return the findings of a run, or that it cannot be read. A run that was never submitted is not missing."""
    if look.run is None or look.snapshot is None:
        if look.is_gone:
            text = f"{look.name} is gone: {look.problem}"
            return [
                Finding(
                    CHECK,
                    Severity.WARNING,
                    text,
                    todo="move it back, or take its line out of .opsctl/runs.jsonl in the cron folder",
                )
            ]
        return [Finding(CHECK, Severity.UNKNOWN, f"{look.name} cannot be looked at: {look.problem}")]
    try:
        found = run_detectors(detectors, look.snapshot, settings_of(look.run))
    except Exception as error:  # a fault of ours, or of its run file, must not blind who watches to the other runs
        return [Finding(CHECK, Severity.UNKNOWN, f"{look.name} cannot be looked at: {in_words(error)}")]
    is_missed = look.snapshot.was_submitted or look.snapshot.checkpoint is not None
    return [one for one in found if is_missed or one.check != training.name]


def printed_run(look: RunSnapshot, findings: Sequence[Finding]) -> PrintedRun:
    """Return the run as printed with `--json`."""
    return PrintedRun(
        name=look.name,
        output=str(look.output) if look.output else None,
        worst=severity_word(worst_of(findings)),
        findings=[printed_finding(one) for one in findings],
    )


def run_lines(looks: Sequence[tuple[RunSnapshot, Sequence[Finding]]]) -> list[str]:
    """Return lines for people: the runs with findings, worst first, then those without in one line."""
    lines, well = [], []
    worst = sorted(looks, key=lambda one: -worst_of(one[1]).weight)
    for look, findings in worst:
        told = sorted((one for one in findings if one.severity > Severity.OK), key=lambda one: -one.severity.weight)
        if not told:
            well.append(look.name)
            continue
        lines.append(f"{look.name}  {look.output or ''}".rstrip())
        alike: dict[tuple[Severity, str], list[Finding]] = {}
        for one in told:  # a Slurm that does not answer blinds many checks, and is one thing to know
            alike.setdefault((one.severity, one.text), []).append(one)
        for one, *more in alike.values():
            keys = ", ".join(each.key for each in (one, *more))
            lines.append(f"  {severity_word(one.severity):<9} {keys}: {one.text}")
            lines += [f"  {'':<9} {one.todo}"] if one.todo else []
    return [*lines, f"ok: {', '.join(well)}"] if well else lines


def _viewed(known: KnownRun, systems: FileSystems) -> RunSnapshot:
    run_file, output = Path(known.run_file), Path(known.output) if known.output else None
    nowhere = RunSnapshot(known.name, output)
    for place in (run_file.parent, output):
        if place is not None and (why := systems.problem(place)):
            return _without(nowhere, why)
    try:
        if not run_file.is_file() and (output is None or not output.is_dir()):
            return _without(nowhere, f"neither {run_file} nor its output folder is there", is_gone=True)
        run = view_known(run_file, output)
        if run_file.is_file():
            refuse_anothers_folder(known, run.paths)
        why = systems.problem(run.paths.output)
    except Exception as error:  # as above
        return _without(nowhere, in_words(error))
    return _without(nowhere, why) if why else RunSnapshot(run.table.name, run.paths.output, run)


def _without(look: RunSnapshot, why: str, is_gone: bool = False) -> RunSnapshot:
    return RunSnapshot(look.name, look.output, problem=why, is_gone=is_gone)


def _with(look: RunSnapshot, snapshot: Snapshot) -> RunSnapshot:
    return RunSnapshot(look.name, look.output, look.run, snapshot)
