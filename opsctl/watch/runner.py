"""Gathering what the checks look at, and telling what they found: the edge of this room."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from opsctl.checkpoints.inventory import last_checkpoint
from opsctl.checkpoints.progress import is_finished
from opsctl.errors import OpsctlError, SlurmUnreachable
from opsctl.moments import now
from opsctl.records.own_jobs import recorded
from opsctl.records.run_view import RunView
from opsctl.records.state_files import append_line
from opsctl.runs.paths import RunPaths
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.types import Job
from opsctl.watch.detectors.training import Settings, Snapshot
from opsctl.watch.finding import Finding


def training_settings(run: RunView) -> Settings:
    """What the training check needs of a run file."""
    return Settings(run.table.name, run.table.team)


def training_snapshot(run: RunView, slurm: SlurmClient) -> Snapshot:
    """What there is to see of the training now. Slurm out of reach is part of it, not an error."""
    seen_at = now()
    finished = how_finished(run)
    try:
        return Snapshot(seen_at, tuple(own_jobs(run.paths, slurm)), finished)
    except SlurmUnreachable as error:
        return Snapshot(seen_at, finished=finished, blind=str(error))


def own_jobs(paths: RunPaths, slurm: SlurmClient) -> list[Job]:
    """The run's jobs in the queue, by one question. Raises SlurmError."""
    return recorded(paths).ask(slurm)


def how_finished(run: RunView) -> str | None:
    """How far a finished training came, None when it is not finished."""
    checkpoint, options = last_checkpoint(run.paths.checkpoints), run.options
    if options is None or checkpoint is None or not is_finished(options, checkpoint):
        return None
    return f"iteration {checkpoint.iteration}, {checkpoint.consumed_train_samples} samples"


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
