"""The kill switch's file, and the commands that handle it."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import pwd
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.attempts.events import Attempt, append_opened
from opsctl.cli import main
from opsctl.errors import OpsctlError
from opsctl.moments import now
from opsctl.output import printable
from opsctl.records import kill_switch
from opsctl.records.group_folder import is_open_to_group
from opsctl.records.kill_switch import Note
from opsctl.runs.paths import RunPaths
from tests.anything import any_json
from tests.printed_json import printed

OURS = grp.getgrgid(os.getegid()).gr_name
ME = pwd.getpwuid(os.geteuid()).pw_name
RUN_FILE = '[run]\nname = "small"\noutput = "out"\n'


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "out")
    paths.output.mkdir()
    paths.output.chmod(0o755)
    return paths


@pytest.fixture
def in_run(tmp_path: Path, paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    """A run's folder as the current one. The run file lacks [slurm]: the switch works with a broken one too."""
    (tmp_path / "run.toml").write_text(RUN_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nonexistent")  # no Slurm to be found
    monkeypatch.delenv("OPSCTL_RUN", raising=False)
    return paths


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["kill-switch", *words])
    return int(stop.value.code or 0)


def test_arming_opens_the_folder_to_the_group_and_records_the_path(paths: RunPaths) -> None:
    assert not kill_switch.state(paths).is_armed
    assert kill_switch.arm(paths, OURS).changed
    mode = paths.output.stat().st_mode
    assert mode & stat.S_ISGID and mode & 0o070 == 0o070
    assert kill_switch.state(paths) == kill_switch.KillSwitchState(paths.kill_switch, is_armed=True, is_triggered=False)
    assert not kill_switch.arm(paths, OURS).changed


def test_arming_makes_the_folder_where_there_is_none(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "new" / "out")
    assert kill_switch.arm(paths).state.is_armed


@pytest.mark.parametrize("mode", [0o700, 0o775, 0o2755, 0o2750])
def test_arming_opens_a_folder_that_was_closed_again(paths: RunPaths, mode: int) -> None:
    kill_switch.arm(paths, OURS)
    paths.output.chmod(mode)
    kill_switch.arm(paths, OURS)
    assert kill_switch.state(paths).is_armed and is_open_to_group(paths.output, OURS)


def test_an_unknown_group_is_named(paths: RunPaths) -> None:
    with pytest.raises(OpsctlError, match="no-such-group"):
        kill_switch.arm(paths, "no-such-group")


def test_triggering_writes_who_when_and_why(paths: RunPaths) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    change = kill_switch.trigger(paths, "the loss is NaN")
    assert change.changed and change.state.is_triggered
    assert (change.state.by, change.state.why) == (ME, "the loss is NaN")
    assert change.state.at is not None and before <= change.state.at <= datetime.now(UTC)
    assert json.loads(paths.kill_switch.read_text())["why"] == "the loss is NaN"
    assert stat.S_IMODE(paths.kill_switch.stat().st_mode) == stat.S_IMODE(paths.output.stat().st_mode) & 0o664
    assert [path.name for path in paths.output.iterdir()] == ["kill-switch"]


def test_the_first_trigger_stands(paths: RunPaths) -> None:
    kill_switch.trigger(paths, "first")
    again = kill_switch.trigger(paths, "second")
    assert not again.changed
    assert again.state.why == "first"


def test_of_many_at_once_one_triggers(paths: RunPaths) -> None:
    changes: list[bool] = []
    people = [threading.Thread(target=lambda n=n: changes.append(_trigger_elsewhere(paths, n))) for n in range(4)]
    for person in people:
        person.start()
    for person in people:
        person.join()
    assert sorted(changes) == [False, False, False, True]


def _trigger_elsewhere(paths: RunPaths, number: int) -> bool:
    code = (
        "import sys; from pathlib import Path; from opsctl.records.kill_switch import trigger; "
        "from opsctl.runs.paths import RunPaths; print(trigger(RunPaths(Path(sys.argv[1])), sys.argv[2]).changed)"
    )
    words = [sys.executable, "-c", code, str(paths.output), str(number)]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip() == "True"


def test_a_plain_touch_triggers_as_the_files_owner(paths: RunPaths) -> None:
    paths.kill_switch.touch()
    state = kill_switch.state(paths)
    assert state.is_triggered and state.by == ME and state.at is not None and state.why == ""
    assert not kill_switch.trigger(paths, "again").changed


@pytest.mark.parametrize("content", [b"\xff\xfe", b"stop please\n", b"[1]", b'{"by": 3, "at": "noon", "why": null}'])
def test_whatever_is_in_the_file_it_counts(paths: RunPaths, content: bytes) -> None:
    paths.kill_switch.write_bytes(content)
    state = kill_switch.state(paths)
    assert state.is_triggered and state.by == ME and state.why == ""


@given(any_json(Note.__struct_fields__))
def test_any_json_in_the_file_counts(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("out"))
    paths.kill_switch.write_text(json.dumps(value))
    assert kill_switch.state(paths).is_triggered


@given(st.text(st.characters(codec="utf-8")), st.from_regex(r"[^/\0]{1,40}", fullmatch=True))
def test_where_it_is_and_what_was_said_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, why: str, name: str
) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    path = paths.output / "switches" / f"at {name}"
    kill_switch.arm(paths, path=path)
    found = kill_switch.trigger(paths, why).state
    assert (found.path, found.is_armed, found.is_triggered) == (path, True, True)
    assert (found.by, found.why) == (ME, printable(why, " ").strip())
    assert found.at is not None and abs(now() - found.at) < timedelta(minutes=1)


def test_words_in_the_file_come_out_as_one_printable_line(paths: RunPaths) -> None:
    paths.kill_switch.write_text(json.dumps({"by": "ann", "why": "a\x1b[31m\nb", "at": "2026-11-21T08:00:00"}))
    assert kill_switch.state(paths).why == "a [31m b"
    assert kill_switch.state(paths).at == datetime(2026, 11, 21, 8, 0, tzinfo=UTC)


def test_a_folder_or_a_dangling_link_in_its_place_is_told_apart(paths: RunPaths) -> None:
    paths.kill_switch.mkdir()
    assert kill_switch.state(paths).is_triggered
    with pytest.raises(OpsctlError, match="is a folder"):
        kill_switch.deactivate(paths)


def test_deactivating_says_what_it_was(paths: RunPaths) -> None:
    kill_switch.trigger(paths, "why not")
    change = kill_switch.deactivate(paths)
    assert change.changed and change.state.why == "why not"
    assert not kill_switch.state(paths).is_triggered
    assert not kill_switch.deactivate(paths).changed


def test_triggering_a_run_without_output_says_so(tmp_path: Path) -> None:
    with pytest.raises(OpsctlError, match="no output yet"):
        kill_switch.trigger(RunPaths(tmp_path / "nothing"))


@contextlib.contextmanager
def somebody_else(name: str = "nobody") -> Iterator[None]:
    """Be that account for a while, in no group but its own."""
    account, groups = pwd.getpwnam(name), os.getgroups()
    os.setgroups([])
    os.setegid(account.pw_gid)
    os.seteuid(account.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@pytest.mark.skipif(os.getuid() != 0, reason="being somebody else needs root")
def test_without_permission_the_line_says_who_can_help() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        paths = RunPaths(Path(folder))
        paths.state.mkdir()
        with somebody_else():
            with pytest.raises(OpsctlError, match=r"permission denied; root can open it .* opsctl kill-switch arm"):
                kill_switch.trigger(paths)
            with pytest.raises(OpsctlError, match="games"):
                kill_switch.arm(paths, "games")
        kill_switch.trigger(paths, "mine")
        with somebody_else():
            assert kill_switch.state(paths).by == "root"
            with pytest.raises(OpsctlError, match="may not remove"):
                kill_switch.deactivate(paths)
        Path(folder).chmod(0o700)
        with somebody_else(), pytest.raises(OpsctlError, match="cannot look at the kill switch"):
            kill_switch.state(paths)


@pytest.mark.skipif(os.getuid() != 0, reason="being somebody else needs root")
def test_a_member_of_the_group_stops_somebody_elses_run_and_the_owner_can_undo_it() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        paths = RunPaths(Path(folder) / "out")
        kill_switch.arm(paths, "games")
        with somebody_else("games"):
            assert kill_switch.trigger(paths, "not mine, but it diverges").changed
        state = kill_switch.state(paths)
        assert (state.by, state.why) == ("games", "not mine, but it diverges")
        assert paths.kill_switch.stat().st_gid == grp.getgrnam("games").gr_gid
        assert kill_switch.deactivate(paths).changed
        kill_switch.trigger(paths, "mine")
        with somebody_else("games"):
            assert kill_switch.deactivate(paths).changed


def test_the_four_words_work_in_a_runs_folder_without_slurm(
    in_run: RunPaths, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("status") == 0
    assert "not armed" in capsys.readouterr().out
    assert call("arm") == 0
    assert call("status") == 0
    assert "armed, not triggered" in capsys.readouterr().out
    assert call("trigger", "--reason", "a spike") == 0
    assert call("trigger") == 0
    assert f"was triggered already, by {ME}" in capsys.readouterr().err
    assert call("status") == 0
    assert "a spike" in capsys.readouterr().out
    assert call("deactivate") == 0
    assert not in_run.kill_switch.exists()
    assert call("deactivate") == 0
    assert "nothing to deactivate" in capsys.readouterr().err


def test_json_says_whether_something_changed(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    call("trigger", "--json")
    first = printed("kill-switch trigger", capsys.readouterr().out)
    assert first["triggered"] and first["changed"] and first["story"].startswith(f"by {ME} at ")
    call("trigger", "--json")
    assert printed("kill-switch trigger", capsys.readouterr().out)["changed"] is False
    call("status", "--json")
    looked_at = printed("kill-switch status", capsys.readouterr().out)
    assert "changed" not in looked_at and looked_at["by"] == ME
    call("deactivate", "--json")
    gone = printed("kill-switch deactivate", capsys.readouterr().out)
    assert (gone["triggered"], gone["by"], gone["story"], gone["changed"]) == (False, None, None, True)
    call("arm", "--dry-run", "--json")
    assert printed("kill-switch arm", capsys.readouterr().out)["changed"] is False


def test_a_dry_run_changes_nothing(in_run: RunPaths) -> None:
    assert call("trigger", "--dry-run") == 0
    assert call("arm", "--dry-run") == 0
    assert list(in_run.output.iterdir()) == []
    in_run.kill_switch.touch()
    assert call("deactivate", "--dry-run") == 0
    assert in_run.kill_switch.exists()


def test_a_live_job_that_looks_elsewhere_is_named(in_run: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    append_opened(in_run, Attempt(number=1, id="a", job_id=12, kill_switch_path="/elsewhere/switch"))
    call("arm")
    assert "job 12 looks at another switch: touch /elsewhere/switch" in capsys.readouterr().err


def test_no_run_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPSCTL_RUN", raising=False)
    assert call("status") == 2


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_switch_that_claims_an_end_of_the_calendar_still_counts(tmp_path: Path, at: str) -> None:
    paths = RunPaths(tmp_path)
    paths.kill_switch.write_text(json.dumps({"by": "ann", "at": at}))
    state = kill_switch.state(paths)
    assert state.is_triggered and state.describe() == f"by ann at {at}"
    assert kill_switch.printed_switch(state).by == "ann"
