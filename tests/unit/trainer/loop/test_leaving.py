"""What a training says as it leaves, on one rank of a real process group of one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trainer.formats.attempt_records import EXIT_REPORT, LEAVING_NOTE
from trainer.formats.leave_lines import Reason
from trainer.formats.progress import Progress
from trainer.loop.leaving import Leaving, LeavingSettings


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def leaving_in(folder: Path) -> Leaving:
    """Triggers and records of a training, all in `folder`."""
    settings = LeavingSettings(
        kill_switch_path=folder / "kill-switch",
        stop_request_path=folder / "stop-request",
        exit_report_path=folder / EXIT_REPORT,
        exit_duration_minutes=None,
        exit_interval=None,
    )
    return Leaving(settings, torch.device("cpu"), 0.0)


def test_word_of_leaving_is_there_before_the_report_and_says_when(tmp_path: Path) -> None:
    leaving = leaving_in(tmp_path)
    leaving.announce(Reason.KILL_SWITCH, 7)
    said = json.loads((tmp_path / LEAVING_NOTE).read_text())
    assert (said["reason"], said["iteration"]) == ("kill-switch", 7)
    assert datetime.fromisoformat(said["at"]).tzinfo is not None
    assert not (tmp_path / EXIT_REPORT).exists()


def test_word_of_leaving_that_cannot_be_written_hurts_nobody(tmp_path: Path) -> None:
    """A folder in its place stands for a full disk: neither takes the file."""
    (tmp_path / LEAVING_NOTE / "in the way").mkdir(parents=True)
    leaving = leaving_in(tmp_path)
    leaving.announce(Reason.KILL_SWITCH, 7)
    leaving.report(Reason.KILL_SWITCH, Progress.none())
    assert json.loads((tmp_path / EXIT_REPORT).read_text())["reason"] == "kill-switch"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".tmp")] == []
