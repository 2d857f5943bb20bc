"""Test what the trainer's spike guard did."""

from __future__ import annotations

from dataclasses import replace

from opsctl.monitoring.check import Settings
from opsctl.monitoring.checks.loss import spike_guard
from opsctl.monitoring.finding import Finding, Severity
from opsctl.monitoring.snapshot import Snapshot
from tests.facts import missing
from tests.unit.monitoring.jobs import NOW, RUNNING
from tests.unit.monitoring.lines import lines
from trainer.formats.logs.guard_lines import LOGGED, SKIPPED, GuardLine, NotRolledBack, RolledBack, RunAgain, Unusual

#: The newest 300 lines, of 105 s each: 30001 to 30300.
SERIES = lines(300)
#: Of six hours of training and less.
NEW = 30_200


def seen(*guarded: GuardLine) -> Snapshot:
    return Snapshot(NOW, (RUNNING,), series=SERIES, guarded=guarded)


def found(*guarded: GuardLine) -> list[Finding]:
    return spike_guard.find(seen(*guarded), Settings("demo", "us"))


def test_hardware_is_critical_and_names_host_and_rank() -> None:
    why = "the same data gave loss 2.0 and 2.1: the replica on jean-zay-ia801 (rank 5) differs"
    (one,) = found(
        RunAgain(NEW, "data", "the same"), RunAgain(NEW + 1, "hardware", "x"), RunAgain(NEW + 2, "hardware", why)
    )
    assert (one.severity, one.key, one.alert) == (Severity.CRITICAL, "spike_guard:hardware", "us")
    assert "jean-zay-ia801 (rank 5)" in one.text and f"iteration {NEW + 2}" in one.text
    assert len(one.evidence) == 2


def test_skipped_updates_are_one_warning() -> None:
    guarded = [Unusual(NEW + n, 5.0, 9.0, SKIPPED) for n in range(8)]
    (one,) = found(*guarded)
    assert (one.severity, one.key) == (Severity.WARNING, "spike_guard:skipped")
    assert missing(one.text, "8 iterations", "30203, 30204, 30205, 30206, 30207", "3 before") == []
    (one,) = found(guarded[0])
    assert "iteration 30200" in one.text


def test_what_was_only_logged_is_for_the_check_on_the_loss() -> None:
    assert found(Unusual(NEW, 5.0, 9.0, LOGGED), RunAgain(NEW, "data", "the same")) == []


def test_each_rollback_is_one_warning_even_when_logged_twice() -> None:
    back, none = RolledBack(NEW, 30_100, 30_187, 30_210, "3 unusual iterations"), NotRolledBack(NEW + 50, "none there")
    one, other = found(back, back, none)
    assert (one.severity, other.severity) == (Severity.WARNING,) * 2
    assert missing(one.text, "30200 to 30100", "30187 to 30210") == []
    assert missing(other.text, "iteration 30250", "none there") == []
    assert [one.key, other.key] == ["spike_guard:iteration 30200", "spike_guard:iteration 30250"]


def test_it_is_told_for_six_hours_of_training() -> None:
    """A line is 105 s: 205 of them are not yet six hours, 207 are more."""
    assert found(Unusual(30_300 - 205, 5.0, 9.0, SKIPPED)) != []
    assert found(Unusual(30_300 - 207, 5.0, 9.0, SKIPPED)) == []
    finished = replace(seen(Unusual(NEW, 5.0, 9.0, SKIPPED)), is_finished=True)
    assert spike_guard.find(finished, Settings("demo", "us")) == []


def test_iterations_that_begin_again_are_no_training_since() -> None:
    """After a rollback the numbers are lower than that at which it was found."""
    again = (*SERIES, *lines(5, first=30_101))
    back = RolledBack(30_300, 30_100, 30_280, 30_310, "3 unusual iterations")
    assert spike_guard.find(replace(seen(back), series=again), Settings("demo", "us")) != []
