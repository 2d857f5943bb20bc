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
    running = overview.running
    return {
        "name": overview.name,
        "output": str(overview.output),
        "at": iso(overview.now),
        "state": overview.state,
        "slurm_problem": overview.blind,
        "submitted": overview.was_submitted,
        "finished": overview.is_finished,
        "job": job_json(running, True) if running else None,
        "queue": None if overview.blind is not None else [job_json(job, True) for job in overview.behind],
        "progress": _progress(overview),
        "speed": {
            "seconds_per_iteration": overview.measured.seconds_per_iteration,
            "samples_per_second": overview.measured.samples_per_second,
            "tflops_per_gpu": overview.measured.tflops,
        },
        "left_s": overview.left_s,
        "finishes_at": iso(overview.finishes_at),
        "loss": _loss(overview),
        "checkpoint": _checkpoint(overview),
        "attempts": [printed_attempt(attempt, _is_seen(overview, attempt)) for attempt in overview.attempts[-3:]],
        "attempts_without_progress": overview.attempts_without_progress,
        "kill_switch": _kill_switch(overview),
        "revision": _revision(overview),
        "findings": [finding_json(finding) for finding in findings],
    }


def _is_seen(overview: Overview, attempt: Attempt) -> bool:
    """Whether Slurm has the attempt's job."""
    return overview.blind is None and any(job.job_id == attempt.job_id for job in overview.jobs)


def _progress(overview: Overview) -> dict[str, Any]:
    return {
        "iteration": overview.iteration,
        "total_iterations": overview.iterations_in_all,
        "consumed_samples": overview.samples,
        "total_samples": overview.total_samples,
        "percent": None if overview.share is None else round(100 * overview.share, 3),
    }


def _loss(overview: Overview) -> dict[str, Any] | None:
    last, at = overview.measured.last_iteration, overview.last_logged_at
    if last is None:
        return None
    return {
        "iteration": last.iteration,
        "lm_loss": last.loss,
        "logged_by": iso(at),
        "age_s": None if at is None else (overview.now - at).total_seconds(),
        "age_is_a_minimum": overview.is_loss_age_a_minimum,
    }


def _checkpoint(overview: Overview) -> dict[str, Any] | None:
    checkpoint, at = overview.checkpoint, overview.checkpoint_at
    if checkpoint is None:
        return None
    return {
        "iteration": checkpoint.iteration,
        "consumed_samples": checkpoint.consumed_train_samples,
        "folder": str(checkpoint.folder),
        "saved_at": iso(at),
        "age_s": None if at is None else (overview.now - at).total_seconds(),
    }


def _kill_switch(overview: Overview) -> dict[str, Any] | None:
    switch = overview.kill_switch
    if switch is None:
        return None
    return {
        "path": str(switch.path),
        "armed": switch.is_armed,
        "triggered": switch.is_triggered,
        "story": switch.story or None,
    }


def _revision(overview: Overview) -> dict[str, Any] | None:
    published = overview.published
    if published is None:
        return None
    return {
        "name": published.name,
        "published_at": iso(published.at),
        "published_by": published.by,
        "differs": list(published.differs),
        "problem": published.problem or None,
    }
