"""Checkpoints that are not what their manifests say."""

from __future__ import annotations

from datetime import timedelta

import pytest

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.checkpoints import checkpoint_files
from opsctl.monitoring.finding import Severity
from opsctl.monitoring.snapshot import FaultyCheckpoint, Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING

SHORT = "layer_03-model_00-model_states.pt has 4096 bytes, not 1073741824"
LEFT = FaultyCheckpoint(".tmp-global_step9.x", "never finished", False, True, NOW - timedelta(days=1))


def found(*faulty: FaultyCheckpoint, **seen: object) -> list[tuple[str, Severity, str]]:
    snapshot = Snapshot(NOW, faulty=faulty, **seen)  # type: ignore[arg-type]
    findings = checkpoint_files.find(snapshot, Settings("demo", "us"))
    return [(one.key, one.severity, one.text) for one in findings]


def test_a_damaged_latest_checkpoint_is_critical_and_an_older_one_is_a_warning() -> None:
    one, two = FaultyCheckpoint("global_step7", SHORT, False), FaultyCheckpoint("global_step8", SHORT, True)
    findings = found(one, two)
    assert [(key, severity) for key, severity, _ in findings] == [
        ("checkpoint_files:global_step7", Severity.WARNING),
        ("checkpoint_files:global_step8", Severity.CRITICAL),
    ]
    assert [missing(text, SHORT) for _, _, text in findings] == [[], []]


def test_what_a_save_left_is_told_where_nobody_can_be_writing_it() -> None:
    assert [key for key, _, _ in found(LEFT)] == ["checkpoint_files:.tmp-global_step9.x"]
    assert found(LEFT, jobs=(RUNNING,)) != []  # the task began two hours ago


@pytest.mark.parametrize("seen", [{"blind": "no answer"}, {"jobs": (RUNNING,)}])
def test_a_save_that_may_go_on_is_none(seen: dict[str, object]) -> None:
    young = FaultyCheckpoint(".tmp-global_step9.x", "never finished", False, True, NOW - timedelta(seconds=30))
    assert found(young, **seen) == []
