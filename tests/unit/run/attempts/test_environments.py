"""The environments of attempts, as their first nodes recorded them, and the changes between attempts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

from opsctl.run.attempts.events import Attempt, append_closed, append_opened, read
from opsctl.run.attempts.table import attempt_table, changes, in_a_clause, printed_attempt
from opsctl.run.config.paths import RunPaths
from trainer.formats.attempt.environment import ENVIRONMENT_FILE, Environment, Package, digest_of
from trainer.formats.json_text import json_file_text


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def attempt(paths: RunPaths, job_id: int, torch: str, ended: bool = True) -> None:
    """Return an attempt with this torch."""
    environment = Environment(packages={"torch": Package(torch)})
    folder = paths.attempt_folder(job_id)
    folder.mkdir(parents=True)
    (folder / ENVIRONMENT_FILE).write_text(json_file_text(environment))
    opened = Attempt(number=0, id=f"{job_id}-a", job_id=job_id)
    append_opened(paths, opened)
    if ended:
        closed = msgspec.structs.replace(opened, reason="failed", closed_by="job", environment=digest_of(environment))
        append_closed(paths, closed)


def test_an_attempt_says_what_it_was_started_with_where_that_is_not_what_the_one_before_was(paths: RunPaths) -> None:
    attempt(paths, 7, "2.6")
    attempt(paths, 8, "2.6")
    append_opened(paths, Attempt(number=0, id="left", job_id=9))  # left at its start, without a record
    append_closed(paths, Attempt(number=0, id="left", job_id=9, reason="kill-switch", closed_by="job"))
    attempt(paths, 10, "2.7")
    attempts = read(paths)
    found = changes(paths, attempts)
    assert found == {"10-a": ("torch 2.6 -> 2.7",)}
    assert [line for line in attempt_table(attempts, (), found) if line.endswith("torch 2.6 -> 2.7")]
    assert printed_attempt(attempts[3], True, found).environment_changes == ("torch 2.6 -> 2.7",)


def test_what_is_gone_or_another_jobs_by_now_is_said_to_have_changed_without_a_guess(paths: RunPaths) -> None:
    for job_id, torch in ((7, "2.6"), (8, "2.7"), (9, "2.8")):
        attempt(paths, job_id, torch)
    shutil.rmtree(paths.attempt_folder(7))
    other = Environment(packages={"torch": Package("1.0")})  # a later job's of the same id
    (paths.attempt_folder(9) / ENVIRONMENT_FILE).write_text(json_file_text(other))
    attempts = read(paths)
    found = changes(paths, attempts)
    assert set(found) == {"8-a", "9-a"} and not any(
        re.search(r"\d", word) for words in found.values() for word in words
    )


def test_many_changes_are_counted() -> None:
    assert re.fullmatch(r"a.*d .*\b2\b.*", in_a_clause(list("abcdef")))
    assert in_a_clause(["a"]) == "a"
