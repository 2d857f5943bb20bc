"""The checks' data and findings as OpenMetrics text for a site's Prometheus: a gauge for each number of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from opsctl.core.output import printable
from opsctl.monitoring.finding import Finding, Severity, severity_word
from opsctl.monitoring.snapshot import Snapshot

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Gauge

#: Of every series: the run's name, and its folder, for two people's runs may be called the same.
RUN_LABELS = ("run", "output")


@dataclass(frozen=True)
class Reading:
    """The snapshot of one run."""

    name: str
    output: str
    state: str  # as `opsctl status` calls it; "unreadable" without a snapshot
    snapshot: Snapshot | None
    findings: Sequence[Finding]


@dataclass(frozen=True)
class _Number:
    name: str
    help: str
    of: Callable[[Snapshot], float | None]  # None: not known, and no sample


def _age_s(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else (now - at).total_seconds()


def _last(name: str) -> Callable[[Snapshot], float | None]:
    def read(seen: Snapshot) -> float | None:
        value: float | None = getattr(seen.measured.last_iteration, name, None)
        return value

    return read


_NUMBERS = (
    _Number("iteration", "Last iteration in the training log.", _last("iteration")),
    _Number("consumed_samples", "Samples consumed, by the training log.", _last("consumed_samples")),
    _Number("loss", "Training loss of the last logged iteration.", _last("loss")),
    _Number("gradient_norm", "Gradient norm of the last logged iteration.", _last("grad_norm")),
    _Number("learning_rate", "Learning rate of the last logged iteration.", _last("learning_rate")),
    _Number("seconds_per_iteration", "Median of the newest iterations.", lambda s: s.measured.seconds_per_iteration),
    _Number("tflops_per_gpu", "Median of the newest iterations.", lambda s: s.measured.tflops),
    _Number("log_age_seconds", "Since the last iteration was logged.", lambda s: _age_s(s.last_logged_at, s.now)),
    _Number("total_samples", "Samples that the training is to consume.", lambda s: s.total_samples),
    _Number("checkpoint_iteration", "Of the latest checkpoint.", lambda s: getattr(s.checkpoint, "iteration", None)),
    _Number("checkpoint_age_seconds", "Since the latest was saved.", lambda s: _age_s(s.checkpoint_at, s.now)),
    _Number("finished", "Whether the training is at its end.", lambda s: float(s.is_finished)),
    _Number("attempts", "Attempts so far.", lambda s: len(s.attempts)),
    _Number("attempts_without_progress", "In a row, without a new checkpoint.", lambda s: s.attempts_without_progress),
    _Number("nodes_healthy", "Of the run's partition.", lambda s: getattr(s.partition, "healthy", None)),
    _Number("nodes", "In the run's partition.", lambda s: getattr(s.partition, "total", None)),
    _Number(
        "cron_heartbeat_age_seconds", "Since its tick.", lambda s: _age_s(getattr(s.cron, "heartbeat_at", None), s.now)
    ),
    _Number("slurm_reachable", "1 if Slurm answered.", lambda s: float(s.blind is None)),
    _Number("looked_at_timestamp_seconds", "When the run was looked at.", lambda s: s.now.timestamp()),
)


def metrics_text(readings: Iterable[Reading], took_s: float) -> str:
    """Return the OpenMetrics text of all runs. took_s: seconds that the snapshot took."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import generate_latest

    registry = CollectorRegistry()
    gauges = _Gauges(registry)
    for one in readings:
        run = (one.name, one.output)
        gauges.set("state", "1 for the state that the run is in.", run, 1.0, state=one.state)
        for finding in one.findings:
            if finding.severity is not Severity.OK:
                words = {"check": finding.check, "subject": finding.subject}
                gauges.set(
                    "finding", "1 for each finding.", run, 1.0, **words, severity=severity_word(finding.severity)
                )
        if one.snapshot is not None:
            _add(gauges, run, one.snapshot)
    gauges.set("look_seconds", "Seconds that looking at all of it took.", None, took_s)
    return str(generate_latest(registry).decode())  # type: ignore[no-untyped-call]


def _add(gauges: _Gauges, run: tuple[str, str], seen: Snapshot) -> None:
    for number in _NUMBERS:
        gauges.set(number.name, number.help, run, number.of(seen))
    if seen.blind is None:
        counts = {"running": 0, "pending": 0, "held": 0, "other": 0}
        for job in seen.jobs:
            phase = "held" if job.is_held else "running" if job.is_running else "pending" if job.is_pending else "other"
            counts[phase] += 1
        for phase, count in counts.items():
            gauges.set("jobs", "The run's rows in the queue.", run, count, phase=phase)
    for space in seen.spaces:
        for name, value in (
            ("space_used_bytes", space.used_bytes),
            ("space_limit_bytes", space.limit_bytes),
            ("space_used_inodes", space.used_inodes),
            ("space_limit_inodes", space.limit_inodes),
            ("space_used_ratio", space.share),
            ("space_used_inodes_ratio", space.inode_share),
        ):
            gauges.set(
                name, "Of a file system or quota that the run is on.", run, value, name=space.name, how=space.how
            )
    for channel in seen.channels:
        gauges.set(
            "alerts_waiting", "Messages that a channel has not taken.", run, channel.waiting, channel=channel.name
        )
        is_failing = float(channel.failing_since is not None or channel.dropped > 0)
        gauges.set(
            "alert_channel_failing",
            "Whether a channel takes none, or has dropped one.",
            run,
            is_failing,
            channel=channel.name,
        )


class _Gauges:
    """The gauges of one text, each made when it is first set. Label values are text that steers no terminal."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._made: dict[str, Gauge] = {}

    def set(
        self, metric: str, help_text: str, run: tuple[str, str] | None, value: float | None, /, **labels: str
    ) -> None:
        """Give it this value; None leaves it out."""
        from prometheus_client import Gauge

        if value is None:
            return
        names = (*(RUN_LABELS if run else ()), *labels)
        if metric not in self._made:
            self._made[metric] = Gauge(f"opsctl_{metric}", help_text, names, registry=self._registry)
        gauge = self._made[metric]
        values = [printable(one) for one in (*(run or ()), *labels.values())]
        (gauge.labels(*values) if names else gauge).set(value)
