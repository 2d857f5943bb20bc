"""The queue as a table and as JSON."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec import structs

from opsctl.core.output import json_text
from opsctl.monitoring.overview import PrintedJob, printed_job
from opsctl.ui.status.queue import queue_table
from tests.printed_json import printed
from tests.unit.monitoring.jobs import HELD, NOW, RUNNING, pending


def test_the_runs_own_jobs_are_marked() -> None:
    head, own, other = queue_table([(RUNNING, True), (HELD, False)], None, NOW)
    assert head.split() == ["JOB", "USER", "NAME", "PART.", "STATE", "NODES", "TIME", "LIMIT", "WHERE", "OR", "WHY"]
    assert own.startswith("* 12_1 ") and own.endswith("node[1-4]")
    assert other.startswith("  30_[1-3%1] ") and " held " in other


def test_on_a_screen_long_names_are_shortened_and_elsewhere_never() -> None:
    long = structs.replace(RUNNING, name="a very long name " * 20)
    assert max(len(line) for line in queue_table([(long, True), (HELD, False)], 100, NOW)) <= 100
    assert long.name in queue_table([(long, True)], None, NOW)[1]


def test_an_expected_start_is_shown_with_its_zone() -> None:
    job = pending("Priority", starts_at=NOW + timedelta(hours=1))
    assert "2026-03-01T11:00+00:00" in queue_table([(job, False)], None, NOW)[1]


def test_a_name_with_line_ends_stays_one_row() -> None:
    lines = queue_table([(structs.replace(RUNNING, name="two\nlines\x1b[2J"), False)], None, NOW)
    assert len(lines) == 2 and r"two\nlines\x1b[2J" in lines[1]


def test_programs_get_the_whole_name_and_times_with_zone() -> None:
    value = as_printed(printed_job(structs.replace(RUNNING, name="a b|c"), own=True))
    assert (value["id"], value["own"], value["name"], value["elapsed_s"]) == ("12_1", True, "a b|c", 7805)
    assert (value["started_at"], value["expected_start_at"]) == ("2026-03-01T07:49:55+00:00", None)


def test_programs_get_an_expected_start_under_its_own_name() -> None:
    value = as_printed(printed_job(pending("Priority", starts_at=NOW), own=False))
    assert (value["started_at"], value["expected_start_at"], value["held"]) == (
        None,
        "2026-03-01T10:00:00+00:00",
        False,
    )
    assert printed_job(HELD, own=False).held is True


def as_printed(job: PrintedJob) -> Any:
    """The job as `opsctl queue --json` prints it."""
    return printed("queue", json_text("jobs", [job]))[0]
