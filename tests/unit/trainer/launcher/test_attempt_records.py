"""The launcher's records of its node's ranks."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from trainer.launcher.attempt_records import Node, RankRecord, record_failure
from trainer.launcher.first_failure import Death


def test_what_somebody_put_among_the_ranks_words_neither_hides_the_failure_nor_keeps_the_launcher(
    tmp_path: Path,
) -> None:
    node = Node(1, 2, 0, "localhost", 1, tmp_path, "x01", "main", 30)
    for name in ("0", "two"):
        (tmp_path / "x01" / "planted" / "attempt_0" / name).mkdir(parents=True)
        os.mkfifo(tmp_path / "x01" / "planted" / "attempt_0" / name / "error.json")
    assert record_failure(node, [Death(0, datetime.now().astimezone(), 3, None)], None, None, ()) == 3
    written = json.loads((tmp_path / "failure-0.json").read_text())
    assert (written["rank"], written["exit_code"]) == (0, 3)


def test_a_rank_that_the_agent_reaped_before_anybody_saw_how_it_ended_is_still_the_first_to_fail(
    tmp_path: Path,
) -> None:
    node = Node(1, 3, 0, "localhost", 1, tmp_path, "x00", "main", 30)
    at = datetime.now().astimezone()
    ended_well = Death(2, at, None, None)
    deaths = [ended_well, Death(1, at, None, None), Death(0, at + timedelta(seconds=0.1), None, 15)]
    # Stands for torch's ChildFailedError, of which that one word is asked.
    error = SimpleNamespace(get_first_failure=lambda: (1, SimpleNamespace(local_rank=1, exitcode=7)))
    assert record_failure(node, deaths, None, error, ()) == 7
    written = json.loads((tmp_path / "failure-0.json").read_text())
    assert (written["rank"], written["exit_code"], written["signal"]) == (1, 7, None)
    assert record_failure(node, [ended_well], None, None, ()) == 1


def test_a_launcher_that_outlives_its_attempt_writes_nothing_into_the_next_ones_folder(tmp_path: Path) -> None:
    folder = tmp_path / "12"
    folder.mkdir()
    node = Node(1, 2, 0, "localhost", 1, folder, "x01", "main", 30)
    record = RankRecord(node)
    folder.rename(tmp_path / "12.1")
    folder.mkdir()
    assert record_failure(node, [Death(0, datetime.now().astimezone(), 3, None)], None, None, (), record.folder) == 3
    assert [*folder.iterdir()] == [] and (tmp_path / "12.1" / "failure-0.json").exists()
