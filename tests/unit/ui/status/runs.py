"""Runs of which this and that is known, for the tests of this room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from opsctl.monitoring.overview import OpenFinding, Overview, findings, with_memory
from opsctl.monitoring.snapshot import Snapshot
from tests.unit.monitoring.jobs import NOW
from trainer.formats.logs.training_line import TrainingLine


def iteration(number: int = 500, total: int = 1000, samples: int | None = 16000) -> TrainingLine:
    """A logged iteration."""
    return TrainingLine(iteration=number, total_iterations=total, consumed_samples=samples, loss=2.5)


def run(**known: Any) -> Overview:
    """A submitted run of which this much is known."""
    return Overview("demo", "the team", Path("/o"), Snapshot(NOW, **{"was_submitted": True, **known}))


def now(overview: Overview, **changed: Any) -> Overview:
    """The same run when this is different."""
    return replace(overview, seen=replace(overview.seen, **changed))


def opened(overview: Overview) -> list[OpenFinding]:
    """Return what a look finds where nothing is remembered."""
    return with_memory(findings(overview), {}, ())
