"""The watchdog's lines: the originals' as they were printed, and our own read back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from opsctl.logs.pulse import parse_pulse
from opsctl.logs.records import Alert, Pulse

STAMP = "[2021-10-02 05:00:03] PULSE: "


def pulse_of(text: str) -> Pulse:
    record = parse_pulse(STAMP + text)
    assert isinstance(record, Pulse), text
    return record


@pytest.mark.parametrize("end", [")", "))"])
def test_a_running_line_is_read_with_and_without_its_last_parenthesis(end: str) -> None:
    found = pulse_of(
        f"tr1-13B is running for 2:10:00 since 2021-10-02T02:50:03 (1528763_4 on 'gpu_p13' partition (r6i4n[0-3,5]{end}"
    )
    assert (found.name, found.state, found.job_id, found.partition, found.nodes, found.elapsed, found.starts_at) == (
        "tr1-13B",
        "running",
        "1528763_4",
        "gpu_p13",
        "r6i4n[0-3,5]",
        "2:10:00",
        "2021-10-02T02:50:03",
    )


@pytest.mark.parametrize(
    ("text", "state", "starts_at"),
    [
        (
            "is waiting for the previous Job Array job to finish before scheduling a new one"
            " (1528874_[1-3%1] on 'gpu_p13' partition)",
            "array-limit",
            "",
        ),
        (
            "is waiting for the previous job to finish before scheduling a new one using the dependency mechanism"
            " (1528874_[1-3%1] on 'gpu_p13' partition)",
            "dependency",
            "",
        ),
        ("is waiting to be scheduled (1528874_[1-3%1] on 'gpu_p13' partition)", "pending", ""),
        (
            "is scheduled to start in 1 day, 2:10:00 (at 2021-10-03T07:10:03) (1528874_[1-3%1] on 'gpu_p13' partition)",
            "scheduled",
            "2021-10-03T07:10:03",
        ),
        (
            "is unknown - fix me: (at 2021-10-03T07:10:03) (1528874_[1-3%1] on 'gpu_p13' partition) ((null))",
            "unknown",
            "2021-10-03T07:10:03",
        ),
    ],
)
def test_the_originals_other_forms_are_read(text: str, state: str, starts_at: str) -> None:
    found = pulse_of(f"tr1-13B-round3.slurm {text}")
    assert (found.name, found.state, found.job_id, found.partition, found.starts_at) == (
        "tr1-13B-round3.slurm",
        state,
        "1528874_[1-3%1]",
        "gpu_p13",
        starts_at,
    )
    assert found.at == datetime(2021, 10, 2, 5, 0, 3)  # noqa: DTZ001


@pytest.mark.parametrize("before", ["", STAMP])
def test_an_alert_is_read_alone_and_after_its_stamp(before: str) -> None:
    found = parse_pulse(before + "***ALERT: tr11-176B-ml is not RUNNING or SCHEDULED! Alert someone at Eng WG***")
    assert isinstance(found, Alert)
    assert (found.name, found.team) == ("tr11-176B-ml", "Eng WG")
    assert (found.at is None) == (before == "")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "PULSE: x is waiting to be scheduled",
        "[2021-99-02 05:00:03] PULSE: x is waiting to be scheduled",
        STAMP + "nothing that we know",
        "[2021-10-02 05:00:03] something else",
        "***ALERT: half of it",
    ],
)
def test_other_lines_are_no_pulse(line: str) -> None:
    assert parse_pulse(line) is None


def test_what_we_print_is_read_back() -> None:
    from opsctl.watch.detector import Settings
    from opsctl.watch.detectors.training import find
    from opsctl.watch.runner import pulse_lines
    from opsctl.watch.snapshot import Snapshot
    from tests.unit.watch.jobs import HELD, NOW, RUNNING, WAITING_FOR_TASK

    findings = find(Snapshot(NOW, (RUNNING, WAITING_FOR_TASK, HELD)), Settings("a run", "the team"))
    running, waiting, held = (parse_pulse(line) for line in pulse_lines(findings, NOW.astimezone(UTC)))
    assert isinstance(running, Pulse) and isinstance(waiting, Pulse) and isinstance(held, Alert)
    assert (running.state, running.name, running.job_id, running.nodes) == ("running", "a run", "12_1", "node[1-4]")
    assert (waiting.state, waiting.job_id) == ("array-limit", "12_[2-3%1]")
    assert (held.name, held.team) == ("a run", "the team")
