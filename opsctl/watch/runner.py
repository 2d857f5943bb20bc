"""Gathering what the checks look at, and telling what they found: the edge of this room."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from opsctl.errors import OpsctlError, SlurmUnreachable
from opsctl.files import append_line
from opsctl.job.progress import Checkpoint, is_finished, last_checkpoint
from opsctl.runs.load import LoadedRun
from opsctl.runs.paths import RunPaths
from opsctl.runs.revisions import newest
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.types import Job
from opsctl.watch.findings import Finding
from opsctl.watch.own import recorded
from opsctl.watch.training import Settings, Snapshot


def training_settings(loaded: LoadedRun) -> Settings:
    """What the training check needs of a run file."""
    return Settings(loaded.file.run.name, loaded.file.run.team)


def training_snapshot(loaded: LoadedRun, slurm: SlurmClient) -> Snapshot:
    """What there is to see of the training now. Slurm out of reach is part of it, not an error."""
    now = datetime.now(UTC).astimezone()
    finished = how_finished(loaded.paths)
    try:
        return Snapshot(now, tuple(own_jobs(loaded, slurm)), finished)
    except SlurmUnreachable as error:
        return Snapshot(now, finished=finished, blind=str(error))


def own_jobs(loaded: LoadedRun, slurm: SlurmClient) -> list[Job]:
    """The run's jobs in the queue, by one question. Raises SlurmError."""
    return recorded(loaded.paths).own(slurm.jobs())


def how_finished(paths: RunPaths) -> str | None:
    """How far a finished training came, None when it is not finished."""
    checkpoint = last_checkpoint(paths.checkpoints)
    return reached(checkpoint) if checkpoint and _is_finished(paths, checkpoint) else None


def reached(checkpoint: Checkpoint) -> str:
    """A checkpoint in words."""
    return f"iteration {checkpoint.iteration}, {checkpoint.consumed_train_samples} samples"


def _is_finished(paths: RunPaths, checkpoint: Checkpoint) -> bool:
    revision = newest(paths)
    return revision is not None and is_finished(revision.trainer_arguments, checkpoint)


def pulse_lines(findings: Iterable[Finding], now: datetime) -> list[str]:
    """The findings as the watchdog's lines, stamped with local time."""
    stamp = f"[{now.astimezone():%Y-%m-%d %H:%M:%S}] PULSE:"
    return [
        f"{stamp} ***ALERT: {finding.text}! Alert someone at {finding.alert}***"
        if finding.alert
        else f"{stamp} {finding.text}"
        for finding in findings
    ]


def append_to_log(paths: RunPaths, lines: Iterable[str]) -> None:
    """Put whole lines into the training log, beside the trainer's own. Raises OpsctlError when it cannot be written.

    It does not make a run's folders: a training that was never submitted has no log to watch over.
    """
    try:
        for line in lines:
            append_line(paths.main_log, line)
    except OSError as error:
        raise OpsctlError(f"not in the training log: cannot write {paths.main_log}: {error.strerror}") from None
