"""The kill switch's file: who may make and remove it, and what counts as one."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.core.errors import OpsctlError
from opsctl.core.output import printable
from opsctl.core.timestamps import now
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import kill_switch
from opsctl.run.state.kill_switch import LONGEST_WORDS, Note
from tests.anything import any_json
from tests.facts import missing

ME = pwd.getpwuid(os.geteuid()).pw_name
#: Puts something else in the switch's place, and what it is called.
ODD_THINGS: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to("/nowhere/at all"),
    "a FIFO": lambda path: os.mkfifo(path),
    "a socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "a folder": lambda path: path.mkdir(),
}
AS_A_COMMAND = (
    "import sys; from pathlib import Path; from opsctl.run.state.kill_switch import trigger; "
    "from opsctl.run.config.paths import RunPaths; print(trigger(RunPaths(Path(sys.argv[1])), sys.argv[2]).changed)"
)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "out")
    paths.output.mkdir()
    paths.output.chmod(0o755)
    return paths


def test_readiness_follows_from_the_mode_of_the_folder(paths: RunPaths) -> None:
    before = kill_switch.state(paths)
    assert (before.is_armed, before.is_triggered, f"only {ME}" in before.readiness()) == (False, False, True)
    paths.output.chmod(0o2770)
    assert kill_switch.state(paths).readiness() == "every group member can trigger it"


@pytest.mark.parametrize("mode", [0o700, 0o775, 0o2755, 0o2750])
def test_a_folder_closed_again_is_no_longer_armed(paths: RunPaths, mode: int) -> None:
    paths.output.chmod(mode)
    assert not kill_switch.state(paths).is_armed


def test_without_a_group_arming_opens_nothing(paths: RunPaths) -> None:
    assert not kill_switch.arm(paths).changed
    assert stat.S_IMODE(paths.output.stat().st_mode) == 0o700
    assert not kill_switch.state(paths).is_armed


def test_arming_makes_the_folder_where_there_is_none(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "new" / "out")
    kill_switch.arm(paths)
    assert paths.state.is_dir()


def test_an_unknown_group_is_named(paths: RunPaths) -> None:
    with pytest.raises(OpsctlError, match="no-such-group"):
        kill_switch.arm(paths, "no-such-group")


def test_a_recorded_path_elsewhere_is_no_authority(paths: RunPaths, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)
    thesis = home / "thesis.txt"
    thesis.write_text("mine")
    paths.state.mkdir()
    (paths.state / "kill-switch.json").write_text(json.dumps({"path": str(thesis), "armed_by": ME}))
    assert not kill_switch.state(paths).is_triggered
    kill_switch.arm(paths)
    assert kill_switch.trigger(paths).state.path == paths.kill_switch
    kill_switch.deactivate(paths)
    assert not kill_switch.deactivate(paths).changed
    assert thesis.read_text() == "mine" and stat.S_IMODE(home.stat().st_mode) == 0o755


def test_triggering_writes_who_when_and_why(paths: RunPaths) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    change = kill_switch.trigger(paths, "the loss is NaN")
    assert change.changed and change.state.is_triggered
    assert (change.state.by, change.state.why) == (ME, "the loss is NaN")
    assert change.state.at is not None and before <= change.state.at <= datetime.now(UTC)
    assert json.loads(paths.kill_switch.read_text())["why"] == "the loss is NaN"
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
    words = [sys.executable, "-c", AS_A_COMMAND, str(paths.output), str(number)]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip() == "True"


def test_whenever_a_trigger_is_killed_it_has_triggered_or_can_be_made_again(paths: RunPaths) -> None:
    kill_switch.arm(paths)
    for number in range(12):
        child = os.fork()
        if not child:
            kill_switch.trigger(paths, "a reason")
            os._exit(0)
        time.sleep(0.0004 * number)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if kill_switch.is_triggered(paths.kill_switch):
            assert kill_switch.state(paths).by == ME
        else:
            assert kill_switch.trigger(paths).changed
        kill_switch.deactivate(paths)


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


@given(st.text(st.characters(codec="utf-8"), max_size=LONGEST_WORDS))
def test_what_was_said_is_read_back(tmp_path_factory: pytest.TempPathFactory, why: str) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("run"))
    found = kill_switch.trigger(paths, why).state
    assert (found.by, found.why) == (ME, printable(why, " ").strip())
    assert found.at is not None and abs(now() - found.at) < timedelta(minutes=1)


def test_a_reason_of_a_megabyte_of_escapes_becomes_one_short_printable_line(paths: RunPaths) -> None:
    why = kill_switch.trigger(paths, "\x1b]0;owned\x07\n\u202e\udcff" + "x" * 1_000_000).state.why
    assert why.isprintable() and "owned" in why and why.endswith("...") and len(why) <= LONGEST_WORDS
    assert paths.kill_switch.stat().st_size < 2000


def test_words_in_the_file_come_out_as_one_short_printable_line(paths: RunPaths) -> None:
    paths.kill_switch.write_text(json.dumps({"by": "ann", "why": "a\x1b[31m\nb", "at": "2026-11-21T08:00:00"}))
    assert kill_switch.state(paths).why == "a [31m b"
    assert kill_switch.state(paths).at == datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
    paths.kill_switch.write_text(json.dumps({"by": "b" * 9000, "why": "w" * 9000}))
    assert len(kill_switch.state(paths).describe()) < 3 * LONGEST_WORDS


@pytest.mark.parametrize("kind", ODD_THINGS)
def test_any_other_object_in_its_place_counts_and_is_named_without_blocking(paths: RunPaths, kind: str) -> None:
    ODD_THINGS[kind](paths.kill_switch)
    assert kill_switch.is_triggered(paths.kill_switch)
    again = kill_switch.trigger(paths, "me too")
    assert not again.changed and again.state.is_triggered
    assert kind in again.state.describe()


@pytest.mark.parametrize("kind", [kind for kind in ODD_THINGS if kind != "a folder"])
def test_deactivating_removes_what_is_in_its_place(paths: RunPaths, kind: str) -> None:
    ODD_THINGS[kind](paths.kill_switch)
    assert kill_switch.deactivate(paths).changed
    assert not os.path.lexists(paths.kill_switch)


def test_deactivating_removes_a_link_and_not_its_target(paths: RunPaths, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text(json.dumps({"by": "eve", "why": "a trap"}))
    paths.kill_switch.symlink_to(thesis)
    assert "a trap" not in kill_switch.state(paths).describe()
    kill_switch.deactivate(paths)
    assert thesis.exists() and not kill_switch.state(paths).is_triggered


def test_deactivating_refuses_to_remove_a_folder(paths: RunPaths) -> None:
    paths.kill_switch.mkdir()
    with pytest.raises(OpsctlError, match=r"kill-switch.* folder"):
        kill_switch.deactivate(paths)


def test_deactivating_says_what_it_was(paths: RunPaths) -> None:
    kill_switch.trigger(paths, "why not")
    change = kill_switch.deactivate(paths)
    assert change.changed and change.state.why == "why not"
    assert not kill_switch.state(paths).is_triggered
    assert not kill_switch.deactivate(paths).changed


def test_triggering_a_run_without_output_is_an_error(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "nothing")
    assert "output" in kill_switch.state(paths).readiness()
    with pytest.raises(OpsctlError, match="output"):
        kill_switch.trigger(paths)


def test_where_everybody_may_write_it_triggers_all_the_same(paths: RunPaths) -> None:
    paths.output.chmod(0o777)
    assert kill_switch.trigger(paths, "at once").changed
    assert kill_switch.state(paths).is_triggered and kill_switch.state(paths).by == ME
    assert not kill_switch.trigger(paths, "again").changed


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_switch_with_an_impossible_time_still_counts(tmp_path: Path, at: str) -> None:
    paths = RunPaths(tmp_path)
    paths.kill_switch.write_text(json.dumps({"by": "ann", "at": at}))
    state = kill_switch.state(paths)
    assert state.is_triggered and missing(state.describe(), "ann", at) == []
    assert kill_switch.printed_switch(state).by == "ann"


def test_the_switch_says_the_host(paths: RunPaths) -> None:
    assert kill_switch.trigger(paths).state.host == socket.gethostname()
