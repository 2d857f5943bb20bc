"""The words of `opsctl kill-switch`, in a run's folder and without Slurm."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import time
from pathlib import Path

import pytest

from opsctl.cli import kill_switch
from opsctl.run.attempts.events import Attempt, append_opened
from opsctl.run.attempts.kill_switch_readers import folder_inode
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.kill_switch import read_deactivations
from tests.printed_json import printed
from tests.unit.cli.called import go_into, opsctl

ME = pwd.getpwuid(os.geteuid()).pw_name
RUN_FILE = '[run]\nname = "small"\noutput = "out"\n'


@pytest.fixture
def in_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run's folder as the current one. The run file lacks [slurm]: the switch works with a broken one too."""
    paths = RunPaths(tmp_path / "out")
    paths.output.mkdir()
    paths.output.chmod(0o755)
    (tmp_path / "run.toml").write_text(RUN_FILE)
    go_into(tmp_path, monkeypatch)
    monkeypatch.setattr(kill_switch, "WORD_WAIT_S", 0.3)
    return paths


def call(*words: str) -> int:
    return opsctl("kill-switch", *words)


def begin(paths: RunPaths, looks_at: Path | str) -> None:
    """A job is live."""
    inode = folder_inode(Path(looks_at))
    append_opened(paths, Attempt(number=1, id="a", job_id=12, kill_switch_path=str(looks_at), kill_switch_inode=inode))


def test_status_says_what_arming_lets_the_group_do(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text(RUN_FILE.replace("[run]", '[run]\ngroup = "team"'))
    assert call("status") == 0
    assert re.search(r"\bteam\b.*opsctl kill-switch arm\b", capsys.readouterr().out)


def test_the_four_words_work_without_slurm(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("status") == 0
    assert re.search(rf"\b{ME}\b.*\bgroup =", capsys.readouterr().out)
    assert call("trigger", "--reason", "a spike") == 0 and in_run.kill_switch.exists()
    assert call("trigger") == 0
    assert ME in capsys.readouterr().err
    assert call("status") == 0
    assert "a spike" in capsys.readouterr().out
    assert call("deactivate") == 0
    assert not in_run.kill_switch.exists()
    assert call("deactivate") == 0


def test_who_takes_it_away_is_on_record_with_who_had_triggered_it_and_a_full_disk_stops_nobody(
    in_run: RunPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call("trigger", "--reason", "a spike")
    call("deactivate")
    call("deactivate")
    (line,) = read_deactivations(in_run)
    assert (line.by, line.triggered_by, line.triggered_why) == (ME, ME, "a spike")
    assert line.triggered_at is not None and line.at >= line.triggered_at
    capsys.readouterr()
    call("trigger")
    in_run.kill_switch_log.unlink()
    in_run.kill_switch_log.mkdir()
    assert call("deactivate") == 0 and not in_run.kill_switch.exists()
    assert str(in_run.kill_switch_log) in capsys.readouterr().err


def test_arming_needs_a_group_and_says_what_to_write(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    before = in_run.output.stat().st_mode
    assert call("arm") == 1
    said = capsys.readouterr().err
    assert 'group = "NAME"' in said and "[run]" in said
    assert in_run.output.stat().st_mode == before and list(in_run.output.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="who is not root may be in no other group")
def test_with_a_group_arming_lets_it(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    (in_run.output.parent / "run.toml").write_text(RUN_FILE + 'group = "games"\n')
    assert call("arm") == 0
    assert "games" in capsys.readouterr().err and in_run.output.stat().st_gid == grp.getgrnam("games").gr_gid
    assert call("arm") == 0
    assert call("status", "--json") == 0
    (looked_at,) = [printed("kill-switch status", capsys.readouterr().out)]
    assert (looked_at["armed"], looked_at["triggered"]) == (True, False)
    assert call("arm", "--dry-run", "--json") == 0
    assert printed("kill-switch arm", capsys.readouterr().out)["changed"] is False


def test_json_says_whether_something_changed(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    call("trigger", "--json")
    first = printed("kill-switch trigger", capsys.readouterr().out)
    assert first["triggered"] and first["changed"] and first["story"].startswith(f"by {ME} at ")
    assert first["live"] == []
    call("trigger", "--json")
    assert printed("kill-switch trigger", capsys.readouterr().out)["changed"] is False
    call("status", "--json")
    looked_at = printed("kill-switch status", capsys.readouterr().out)
    assert "changed" not in looked_at and looked_at["by"] == ME
    call("deactivate", "--json")
    gone = printed("kill-switch deactivate", capsys.readouterr().out)
    assert (gone["triggered"], gone["by"], gone["story"], gone["changed"]) == (False, None, None, True)


def test_a_dry_run_changes_nothing(in_run: RunPaths) -> None:
    assert call("trigger", "--dry-run") == 0
    assert list(in_run.output.iterdir()) == []
    in_run.kill_switch.touch()
    assert call("deactivate", "--dry-run") == 0
    assert in_run.kill_switch.exists()


def test_triggering_tells_what_the_training_says(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    begin(in_run, in_run.kill_switch)
    in_run.attempt_folder(12).mkdir(parents=True)
    (in_run.attempt_folder(12) / "leaving.json").write_text(json.dumps({"reason": "kill-switch", "iteration": 77}))
    assert call("trigger", "--json") == 0
    answer = capsys.readouterr()
    assert re.search(r"\bjob 12 .*\b77\b", answer.err)
    (live,) = printed("kill-switch trigger", answer.out)["live"]
    assert (live["job"], live["sees_it"]) == ("12", True) and "77" in live["said"]


def test_no_word_in_time_is_said_and_no_failure(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    begin(in_run, in_run.kill_switch)
    started = time.monotonic()
    assert call("trigger") == 0
    assert time.monotonic() - started >= 0.3
    waiting, late = capsys.readouterr().err.splitlines()[-2:]
    assert "0.3 s" in waiting and "job 12" in waiting and "job 12" in late and in_run.kill_switch.exists()


def test_nobody_waits_who_does_not_want_to_or_has_nobody_to_wait_for(
    in_run: RunPaths, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kill_switch, "WORD_WAIT_S", 60.0)
    started = time.monotonic()
    assert call("trigger") == 0
    begin(in_run, in_run.kill_switch)
    assert call("trigger", "--no-wait") == 0
    assert time.monotonic() - started < 50 and "waiting" not in capsys.readouterr().err


def test_it_fails_where_a_live_job_looks_elsewhere_and_names_it(
    in_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(in_run, "/elsewhere/kill-switch")
    for words in (["trigger"], ["trigger", "--no-wait"]):
        assert call(*words) == 1
        assert re.search(r"job 12\b.*/elsewhere/kill-switch", capsys.readouterr().err)
    assert in_run.kill_switch.exists()
    assert call("trigger", "--dry-run") == 0
    assert re.search(r"job 12\b.*/elsewhere/kill-switch", capsys.readouterr().err)


def test_it_succeeds_where_a_job_that_looks_elsewhere_says_that_it_has_seen_it(in_run: RunPaths) -> None:
    begin(in_run, "/elsewhere/kill-switch")
    in_run.attempt_folder(12).mkdir(parents=True)
    (in_run.attempt_folder(12) / "leaving.json").write_text(json.dumps({"reason": "kill-switch", "iteration": 77}))
    assert call("trigger") == 0


def test_it_reaches_the_job_of_a_folder_that_was_moved(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    begin(in_run, in_run.kill_switch)
    in_run.output.rename(in_run.output.with_name("moved"))
    Path("run.toml").write_text(RUN_FILE.replace('"out"', '"moved"'))
    assert call("trigger", "--json") == 0
    (live,) = printed("kill-switch trigger", capsys.readouterr().out)["live"]
    assert live["sees_it"] and not in_run.output.exists()


def test_it_fails_where_nobody_can_say_who_looks_at_it(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    in_run.state.mkdir(mode=0o755)
    in_run.attempts.mkdir()
    assert call("trigger") == 1
    assert str(in_run.attempts) in capsys.readouterr().err
    assert in_run.kill_switch.exists()


def test_a_reason_obeys_nobody(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("trigger", "--reason", "\x1b]0;x\x07\nopsctl: fine" + "y" * 100_000) == 0
    assert call("status") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "\x1b" not in line and "\x07" not in line and len(line) < 1000


def test_no_run_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPSCTL_RUN", raising=False)
    assert call("status") == 2
