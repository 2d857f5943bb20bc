"""Checks that cannot see, and what may be said of what they had found."""

from __future__ import annotations

import pytest

from opsctl.monitoring.check import Detector, Settings, can_tell, run_detectors, summary
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.registry import DETECTORS
from opsctl.monitoring.snapshot import Part, Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING

SETTINGS = Settings("demo", "us")
LOUD = Detector("loud", lambda *_: [Finding("loud", Severity.WARNING, "here", subject="a")], Part.QUEUE | Part.ATTEMPTS)


def unknown(snapshot: Snapshot, detector: Detector = LOUD) -> list[str]:
    return [one.text for one in run_detectors([detector], snapshot, SETTINGS) if one.severity is Severity.UNKNOWN]


def test_a_blind_check_reports_the_reason_once_and_nothing_else() -> None:
    assert unknown(Snapshot(NOW, was_submitted=True)) == []
    (text,) = unknown(Snapshot(NOW, blind="no answer"))
    assert missing(text, "demo", "no answer") == []
    broken = Snapshot(NOW, was_submitted=True, problems=((Part.ATTEMPTS, "attempts.jsonl"),))
    (text,) = unknown(broken)
    assert missing(text, "demo", "attempts.jsonl") == []


def test_what_it_can_do_without_does_not_make_it_blind() -> None:
    partly = Detector("loud", LOUD.find, LOUD.needs, can_do_without=Part.QUEUE)
    assert unknown(Snapshot(NOW, was_submitted=True, blind="no answer"), partly) == []


def test_of_a_run_that_was_never_submitted_nothing_in_slurm_is_missed() -> None:
    assert unknown(Snapshot(NOW, problems=((Part.ATTEMPTS, "gone"),))) == []


def test_each_check_that_needs_the_queue_is_unknown_when_slurm_does_not_answer() -> None:
    blind = Snapshot(NOW, was_submitted=True, blind="no answer", jobs=(RUNNING,))
    need_it = [one for one in DETECTORS if Part.QUEUE in one.needs & ~one.can_do_without or one.name == "training"]
    assert need_it
    for detector in need_it:
        (found,) = run_detectors([detector], blind, SETTINGS)
        assert (found.severity, found.key) == (Severity.UNKNOWN, detector.name) and "no answer" in found.text


@pytest.mark.parametrize(
    ("key", "is_told"),
    [
        ("nodes:n1", True),
        ("silence", False),  # it was not looked at
        ("queue", False),
        ("queue:30", False),
        ("filesystem:/scratch bytes", False),
        ("filesystem:/scratch2 bytes", True),
        ("filesystem:/store bytes", True),
    ],
)
def test_what_is_not_found_is_over_only_where_somebody_could_see(key: str, is_told: bool) -> None:
    found = [
        Finding("queue", Severity.UNKNOWN, "no answer"),
        Finding("filesystem", Severity.UNKNOWN, "no answer", subject="/scratch"),
        Finding("nodes", Severity.WARNING, "drained", subject="n2"),
    ]
    assert can_tell(key, found, {"nodes", "queue", "filesystem"}) is is_told


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([[("a", Severity.OK)]], "3 checks: all healthy"),
        ([[("a", Severity.WARNING), ("a", Severity.CRITICAL)]], "3 checks: 2 healthy, 1 with findings"),
        (
            [[("a", Severity.WARNING), ("b", Severity.UNKNOWN), ("b", Severity.WARNING)]],
            "3 checks: 1 healthy, 1 with findings, 1 not able to look",
        ),
        ([[], [("run", Severity.UNKNOWN)]], "6 checks of 2 runs: 3 healthy, 3 not able to look"),
    ],
)
def test_the_summary_counts_each_check_once(found: list[list[tuple[str, Severity]]], expected: str) -> None:
    detectors = [Detector(name, lambda *_: [], Part.LOG) for name in "abc"]
    findings = [[Finding(name, severity, "") for name, severity in run] for run in found]
    assert summary(detectors, findings) == expected
