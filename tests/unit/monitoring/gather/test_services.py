from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from opsctl.monitoring.runner import gather
from opsctl.monitoring.snapshot import Part
from opsctl.run.attempts.events import Attempt, append_opened
from opsctl.run.state.run_view import view
from tests.tiny_run import write_run
from tests.unit.monitoring.jobs import NOW
from tests.unit.monitoring.run_folder import slurm
from trainer.formats.attempt.attempt_records import NodeClock
from trainer.formats.json_text import json_file_text
from trainer.launcher.attempt_records import Node, record_clock


def test_a_nodes_clock_is_held_against_what_the_file_server_stamped(tmp_path: Path) -> None:
    run = view(str(write_run(tmp_path)))
    run.paths.state.mkdir(parents=True)
    assert gather(run, slurm([]), Part.CLOCKS).clocks == ()
    append_opened(run.paths, Attempt(number=1, id="z", job_id=6, opened_at=NOW))
    run.paths.attempt_folder(6).mkdir(parents=True)
    record_clock(Node(2, 0, 0, "x", 1, run.paths.attempt_folder(6), "of-an-earlier-attempt", "m", 30))
    append_opened(run.paths, Attempt(number=2, id="a", job_id=7, opened_at=NOW))
    folder = run.paths.attempt_folder(7)
    folder.mkdir(parents=True)
    record_clock(Node(2, 2, 0, "x", 1, folder, "x01", "m", 30))  # by the clock of this very machine
    ahead = folder / "clock-1.json"
    ahead.write_text(json_file_text(NodeClock("x02\x1b[31m", NOW + timedelta(seconds=90))))
    os.utime(ahead, (NOW.timestamp(), NOW.timestamp()))
    (folder / "clock-2.json").write_text('{"node": "x03", "clo')
    first, second = gather(run, slurm([]), Part.CLOCKS).clocks
    assert first.node == "x01" and abs(first.off_s) < 5
    assert (second.node, second.off_s, second.at) == ("x02\x1b[31m", 90.0, NOW)


def test_the_cron_and_the_channels_are_looked_at(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    run = view(str(write_run(tmp_path / "run")))
    seen = gather(run, slurm([]), Part.CRON | Part.CHANNELS)
    assert seen.cron is not None and not seen.cron.is_started and seen.channels == () and seen.problems == ()
