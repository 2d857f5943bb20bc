"""`status` for programs: stable snake_case keys, units in the names, null for what is not known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opsctl.attempts.events import Attempt
from opsctl.attempts.table import printed_attempt
from opsctl.moments import iso
from opsctl.status.overview import Overview
from opsctl.status.queue import job_json
from opsctl.watch.finding import Finding
from opsctl.watch.snapshot import Snapshot


def finding_json(finding: Finding) -> dict[str, Any]:
    """One finding."""
    return {
        "check": finding.check,
        "severity": finding.severity.name.lower(),
        "text": finding.text,
        "alert": finding.alert,
    }


def status_json(overview: Overview, findings: Sequence[Finding]) -> dict[str, Any]:
    """The whole overview."""
    seen, running = overview.seen, overview.seen.running
    return {
        "name": overview.name,
        "output": str(overview.output),
        "at": iso(seen.now),
        "state": overview.state,
        "slurm_problem": seen.blind,
        "submitted": seen.was_submitted,
        "finished": seen.is_finished,
        "job": job_json(running, True) if running else None,
        "queue": None if seen.blind is not None else [job_json(job, True) for job in seen.behind],
        "progress": _progress(overview),
        "speed": {
            "seconds_per_iteration": seen.measured.seconds_per_iteration,
            "samples_per_second": seen.measured.samples_per_second,
            "tflops_per_gpu": seen.measured.tflops,
        },
        "left_s": overview.left_s,
        "finishes_at": iso(overview.finishes_at),
        "loss": _loss(seen),
        "checkpoint": _checkpoint(seen),
        "attempts": [printed_attempt(attempt, _is_seen(seen, attempt)) for attempt in seen.attempts[-3:]],
        "attempts_without_progress": seen.attempts_without_progress,
        "kill_switch": _kill_switch(seen),
        "revision": _revision(seen),
        "findings": [finding_json(finding) for finding in findings],
    }


def _is_seen(seen: Snapshot, attempt: Attempt) -> bool:
    """Whether Slurm has the attempt's job."""
    return seen.blind is None and any(job.job_id == attempt.job_id for job in seen.jobs)


def _progress(overview: Overview) -> dict[str, Any]:
    return {
        "iteration": overview.iteration,
        "total_iterations": overview.iterations_in_all,
        "consumed_samples": overview.samples,
        "total_samples": overview.seen.total_samples,
        "percent": None if overview.share is None else round(100 * overview.share, 3),
    }


def _loss(seen: Snapshot) -> dict[str, Any] | None:
    last, at = seen.measured.last_iteration, seen.last_logged_at
    if last is None:
        return None
    return {
        "iteration": last.iteration,
        "lm_loss": last.loss,
        "logged_by": iso(at),
        "age_s": None if at is None else (seen.now - at).total_seconds(),
        "age_is_a_minimum": seen.is_loss_age_a_minimum,
    }


def _checkpoint(seen: Snapshot) -> dict[str, Any] | None:
    checkpoint, at = seen.checkpoint, seen.checkpoint_at
    if checkpoint is None:
        return None
    return {
        "iteration": checkpoint.iteration,
        "consumed_samples": checkpoint.consumed_train_samples,
        "folder": str(checkpoint.folder),
        "saved_at": iso(at),
        "age_s": None if at is None else (seen.now - at).total_seconds(),
    }


def _kill_switch(seen: Snapshot) -> dict[str, Any] | None:
    switch = seen.kill_switch
    if switch is None:
        return None
    return {
        "path": str(switch.path),
        "armed": switch.is_armed,
        "triggered": switch.is_triggered,
        "story": switch.describe() or None,
    }


def _revision(seen: Snapshot) -> dict[str, Any] | None:
    published = seen.published
    if published is None:
        return None
    return {
        "name": published.name,
        "published_at": iso(published.at),
        "published_by": published.by,
        "differs": list(published.differs),
        "problem": published.problem or None,
    }
