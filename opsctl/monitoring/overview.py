"""A run as users look at it: what follows from a snapshot, its findings, and what is remembered of them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import to_the_second
from opsctl.monitoring import registry
from opsctl.monitoring.check import Detector, Settings, run_detectors
from opsctl.monitoring.checks.speed import Standstill, standstill
from opsctl.monitoring.checks.training import training
from opsctl.monitoring.finding import Finding, PrintedFinding, Severity, printed, printed_finding, since
from opsctl.monitoring.runner import gather, in_words, settings_of
from opsctl.monitoring.snapshot import Part, Snapshot
from opsctl.run.config.paths import RunPaths
from opsctl.run.logs.measurements import training_left_s
from opsctl.run.state import alerts
from opsctl.run.state.alerts import Remembered, Silence
from opsctl.run.state.chains import Cancel, read_cancels
from opsctl.run.state.run_view import RunView
from opsctl.slurm.client import SlurmReader
from opsctl.slurm.states import Reason
from opsctl.slurm.types import Job
from trainer.formats.json_text import Moment

if TYPE_CHECKING:
    from opsctl.diagnosis.carbon.brief import EnergySeen
    from opsctl.diagnosis.goodput.brief import GoodputSeen
    from opsctl.jobs.evaluation.brief import EvaluationSeen


@dataclass(frozen=True)
class Overview:
    """A run as `status` shows it."""

    name: str
    team: str
    output: Path
    seen: Snapshot
    settings: Settings | None = None  # of its run file; None: not known

    @property
    def state(self) -> str:
        """unknown, finished, absent, unsubmitted, waiting, held, or Slurm's state of the running task in lower case."""
        seen = self.seen
        if seen.blind is not None:
            return "finished" if seen.is_finished else "unknown"
        if seen.running is not None:
            return seen.running.state.lower()
        if seen.is_finished:
            return "finished"
        if not seen.jobs and (seen.unseen or seen.writer_elsewhere is not None):
            return "unknown"
        if not seen.jobs:
            return "absent" if seen.was_submitted else "unsubmitted"
        others = [job for job in seen.jobs if not job.is_pending and not job.is_held]
        if others:
            return others[0].state.lower()
        return "held" if all(job.is_held or job.cannot_start for job in seen.jobs) else "waiting"

    @property
    def iteration(self) -> int | None:
        """The last completed iteration of the training that continues."""
        last, checkpoint = self.seen.standing.last_iteration, self.seen.checkpoint
        if last is not None:
            return last.iteration
        return checkpoint.iteration if checkpoint else None

    @property
    def samples(self) -> int | None:
        """The samples consumed so far; None if unknown, as for another program without `global_batch_size`."""
        last, checkpoint = self.seen.standing.last_iteration, self.seen.checkpoint
        if last is not None and last.consumed_samples is not None:
            return last.consumed_samples
        return (checkpoint.consumed_train_samples or None) if checkpoint else None

    @property
    def iterations_in_all(self) -> int | None:
        """The iterations of the whole training, by the log or else by the revision."""
        last = self.seen.measured.last_iteration
        return (last.total_iterations if last is not None else 0) or self.seen.total_iterations

    @property
    def share(self) -> float | None:
        """The completed share of the training, 0 to 1, by samples if the training is counted in samples."""
        total_samples = self.seen.total_samples
        done, total = (self.samples, total_samples) if total_samples else (self.iteration, self.iterations_in_all)
        return min(1.0, done / total) if done is not None and total else None

    @property
    def percent_text(self) -> str:
        """`share` as `12.3 %`; empty if it is not known."""
        if self.share is None:
            return ""
        return "< 0.1 %" if 0 < self.share < 0.0005 else f"{100 * self.share:.1f} %"

    @property
    def standstill(self) -> Standstill | None:
        """The standstill, by the rule of the check `silence`; None while the training logs."""
        return standstill(self.seen, self.settings or Settings(self.name, self.team))

    @property
    def left_s(self) -> float | None:
        """The seconds of training left at the present speed; None during a standstill."""
        if self.seen.is_finished:
            return 0.0
        if self.standstill is not None:
            return None
        saved = self.seen.checkpoint
        return training_left_s(
            self.seen.standing,
            self.seen.total_samples,
            self.seen.total_iterations,
            saved.consumed_train_samples if saved else None,
            saved.iteration if saved else None,
        )

    @property
    def finishes_at(self) -> datetime | None:
        """The expected end at the present speed; None while it does not train."""
        if self.left_s is None or self.state != "running":
            return None
        return self.seen.now + timedelta(seconds=self.left_s)


#: What a look at one run gathers. The rest costs too much for every look.
SCREEN_PARTS = Part.ALL | Part.SERIES | Part.CRON | Part.CHANNELS


def checks_of(parts: Part = SCREEN_PARTS) -> list[Detector]:
    """Return the checks that need only `parts`."""
    return [check for check in registry.DETECTORS if check.needs in parts]


def findings(
    overview: Overview, settings: Settings | None = None, checks: Sequence[Detector] | None = None
) -> list[Finding]:
    """Return what a person should know or do, worst first; empty if the run is healthy. An unreachable Slurm is a
    state, not a finding.

    A run that was never submitted is not missing. settings: None if only the run's name is known.
    """
    settings = settings or Settings(overview.name, overview.team)
    found = run_detectors(checks_of() if checks is None else checks, overview.seen, settings)
    shown = [
        one
        for one in found
        if one.severity in (Severity.WARNING, Severity.CRITICAL)
        and (overview.seen.was_submitted or one.check != training.name)
    ]
    return sorted(shown, key=lambda one: -one.severity.weight)


@dataclass(frozen=True)
class Extras:
    """The state of a run outside its own records."""

    findings: Mapping[str, Remembered] = field(default_factory=dict)  # those that are open, by key
    silence: Silence | None = None
    cancels: tuple[Cancel, ...] = ()
    problem: str = ""  # why that cannot be read
    evaluation: EvaluationSeen | None = None  # None: no evaluation is configured, or it was not read
    goodput: GoodputSeen | None = None  # None: too little is known, or it was not read
    energy: EnergySeen | None = None  # None: nothing is measured, or it was not read
    lacks: tuple[str, ...] = ()  # what cannot be done with a training program other than our trainer


class PrintedJob(Struct, frozen=True, kw_only=True):
    """One row of the queue: an array task, or the rest of an array that has not started."""

    id: Annotated[str, Meta(description="The id as squeue shows it, `12_2` or `12_[3-4%1]`.")]
    job_id: Annotated[int, Meta(description="Slurm's own id of it.")]
    array_job_id: Annotated[int, Meta(description="The id that sbatch printed.")]
    array_task: Annotated[str | None, Meta(description="Its index in the array, or the pending indices.")]
    own: Annotated[bool, Meta(description="True if it is the run's.")]
    name: Annotated[str, Meta(description="Its name.")]
    user: Annotated[str, Meta(description="Its owner.")]
    partition: Annotated[str, Meta(description="Its partition.")]
    state: Annotated[str, Meta(description="Slurm's long state, in capitals.")]
    reason: Annotated[str | None, Meta(description="Slurm's reason why it waits, if any.")]
    held: Annotated[bool, Meta(description="True if only a person can let it start.")]
    nodes: Annotated[str | None, Meta(description="Its nodes, folded as Slurm does; null while it has none.")]
    node_count: Annotated[int, Meta(description="How many nodes it has or asks for.")]
    elapsed_s: Annotated[int, Meta(description="Seconds that it has run.")]
    time_limit_s: Annotated[int | None, Meta(description="Its time limit in seconds; null for none.")]
    submitted_at: Annotated[Moment | None, Meta(description="When it was submitted.")]
    started_at: Annotated[Moment | None, Meta(description="When it started; null while it is pending.")]
    expected_start_at: Annotated[Moment | None, Meta(description="When Slurm guesses that a pending one starts.")]
    ends_at: Annotated[Moment | None, Meta(description="When its limit ends it; null while it is pending.")]
    dependency: Annotated[str | None, Meta(description="Slurm's reason for waiting.")]


def printed_job(job: Job, own: bool) -> PrintedJob:
    """Return `job` as printed with `--json`. own: it is the run's."""
    return printed(
        PrintedJob,
        job,
        id=job.display_id,
        own=own,
        reason=None if job.reason == Reason.NONE else job.reason or None,
        held=job.is_held,
        started_at=None if job.is_pending else to_the_second(job.started_at),
        expected_start_at=to_the_second(job.started_at) if job.is_pending else None,
        ends_at=None if job.is_pending else to_the_second(job.ends_at),
    )


@dataclass(frozen=True)
class OpenFinding:
    """One finding, and what is known of it beyond this look."""

    finding: Finding
    since: datetime | None = None
    seen_at: datetime | None = None  # by an earlier look, which this one did not repeat; None: now
    acknowledged_by: str = ""
    acknowledged_at: datetime | None = None
    acknowledged_why: str = ""

    @property
    def severity(self) -> Severity:
        """The finding's severity."""
        return self.finding.severity

    def story(self, now: datetime) -> str:
        """Return a line with since when, who acknowledged it and what to do; empty if nothing is known."""
        parts = []
        if self.since is not None:
            parts.append(f"for {since(self.since, now)}")
        if self.seen_at is not None:
            parts.append(f"seen {since(self.seen_at, now)} ago")
        if self.acknowledged_by:
            why = f": {self.acknowledged_why}" if self.acknowledged_why else ""
            at = f" {since(self.acknowledged_at, now)} ago" if self.acknowledged_at is not None else ""
            parts.append(f"acknowledged by {self.acknowledged_by}{at}{why}")
        if self.finding.todo:
            parts.append(f"do: {self.finding.todo}")
        return "; ".join(parts)


class PrintedOpenFinding(PrintedFinding, frozen=True, kw_only=True):
    """One line of one check, and what is remembered of it."""

    seen_at: Annotated[
        Moment | None, Meta(description="Time of the check that found it, if this command did not run that check.")
    ]
    acknowledged_by: Annotated[str | None, Meta(description="The user who acknowledged it.")]
    acknowledged_at: Annotated[Moment | None, Meta(description="Since when.")]
    acknowledged_why: Annotated[str | None, Meta(description="Reason of the acknowledgement.")]


def printed_open(one: OpenFinding) -> PrintedOpenFinding:
    """Return `one` as printed with `--json`; `since` is the remembered time if the check does not know it."""
    found = {**msgspec.structs.asdict(printed_finding(one.finding)), "since": to_the_second(one.since)}
    return printed(PrintedOpenFinding, one, **found)


def with_memory(
    found: Sequence[Finding], remembered: Mapping[str, Remembered], checked: Collection[str]
) -> list[OpenFinding]:
    """Return the findings of this snapshot and the remembered ones of checks that did not run, worst first.

    remembered: the open ones by the finding's key. checked: the names of the checks that ran.
    """
    shown = [_joined(one, remembered.get(one.key)) for one in found]
    for key, one in remembered.items():
        check, _, subject = key.partition(":")
        severity = _SEVERITIES.get(one.severity)
        if severity is not None and check not in checked:
            finding = Finding(check, severity, one.text, None, subject, one.since, one.evidence, one.todo)
            shown.append(_joined(finding, one, one.last_seen))
    return sorted(shown, key=lambda one: -one.severity.weight)


_SEVERITIES = {"warning": Severity.WARNING, "critical": Severity.CRITICAL}


def _joined(finding: Finding, one: Remembered | None, seen_at: datetime | None = None) -> OpenFinding:
    if one is None:
        return OpenFinding(finding, finding.since, seen_at)
    return OpenFinding(
        finding,
        finding.since or one.since,
        seen_at,
        one.acknowledged_by,
        one.acknowledged_at,
        one.acknowledged_why,
    )


def read_extras(paths: RunPaths, now: datetime) -> Extras:
    """Return what is remembered, or the problem that prevents reading it."""
    try:
        return Extras(alerts.open_alerts(paths), alerts.silence_of(paths, now), tuple(read_cancels(paths)))
    except (OSError, OpsctlError) as error:
        return Extras(problem=in_words(error))


def goodput_of(seen: Snapshot) -> GoodputSeen | None:
    """Return the goodput, computed from the snapshot alone."""
    if not seen.attempts:
        return None
    from opsctl.diagnosis.goodput.brief import goodput_seen

    is_queued = None if seen.blind is not None else any(job.is_pending for job in seen.jobs)
    submitted = [chain.submitted_at for chain in seen.chains]
    last, typical_s = seen.standing.last_iteration, seen.measured.seconds_per_iteration
    return goodput_seen(seen.attempts, submitted, typical_s, seen.now, is_queued, last.iteration if last else None)


def open_findings(
    run: RunView, overview: Overview, extras: Extras, parts: Part = SCREEN_PARTS
) -> tuple[OpenFinding, ...]:
    """Return the findings of a snapshot of `parts` and the remembered ones, worst first."""
    checks = checks_of(parts)
    found = findings(overview, settings_of(run), checks)
    return tuple(with_memory(found, extras.findings, {check.name for check in checks}))


@dataclass(frozen=True)
class RunStatus:
    """One run as it was found in one look, with all that `status` shows of it."""

    run: RunView
    overview: Overview
    extras: Extras
    found: tuple[OpenFinding, ...]  # worst first


def status_of_run(run: RunView, slurm: SlurmReader) -> RunStatus:
    """Gather all that `status` shows. Raises OpsctlError or OSError for what it cannot do without."""
    snapshot = gather(run, slurm, SCREEN_PARTS)
    overview = Overview(run.table.name, run.table.team, run.paths.output, snapshot, settings_of(run))
    extras = replace(read_extras(run.paths, snapshot.now), goodput=goodput_of(snapshot))
    # What only some runs have is imported for those: imports are most of what a screen takes.
    if os.path.exists(run.paths.codecarbon):  # noqa: PTH110 - one that may not be seen raises nothing
        from opsctl.diagnosis.carbon.brief import energy_seen

        table = run.loaded.file.carbon if run.loaded is not None else None
        extras = replace(extras, energy=energy_seen(run.paths, table))
    if os.path.exists(run.paths.evaluations):  # noqa: PTH110
        from opsctl.jobs.evaluation.brief import evaluations_seen

        extras = replace(extras, evaluation=evaluations_seen(run.paths))
    if run.file is not None and run.file.program is not None:
        from opsctl.run.checkpoints.adopted import seconds_between_checkpoints
        from opsctl.run.config.program import program_of

        program = program_of(run.file, run.paths.output)
        lost_s = seconds_between_checkpoints(run.paths, snapshot.measured.seconds_per_iteration)
        extras = replace(extras, lacks=tuple(program.lacks(lost_s)) if program else ())
    return RunStatus(run, overview, extras, open_findings(run, overview, extras))
