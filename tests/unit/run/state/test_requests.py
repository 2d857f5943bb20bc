from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.core.account import account_name
from opsctl.core.files.state_files import append_state
from opsctl.run.config.paths import RunPaths
from opsctl.run.state import requests as carrier_module
from opsctl.run.state import requests as requests_module
from opsctl.run.state.requests import (
    Action,
    Carrier,
    Outcome,
    Request,
    ask,
    audited,
    carrying,
    look,
    taken,
    told_of,
    waiting,
)
from tests.facts import missing

STOP = Request(action=Action.STOP, why="too hot", owner="ann", job="11_1", attempt="12-ab")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    tmp_path.chmod(0o750)
    return RunPaths(tmp_path)


def lying_there(paths: RunPaths, name: str = "x") -> Path:
    ask(paths, STOP)
    for path in paths.requests.glob("*.json"):
        path.unlink()
    return paths.requests / f"{name}.json"


def test_a_request_says_what_and_its_file_says_who(paths: RunPaths) -> None:
    request_id = ask(paths, STOP)
    assert waiting(paths) == [request_id]
    found = look(paths, request_id)
    assert found is not None and (found.request, found.problem, found.asker) == (STOP, "", account_name())
    assert (paths.requests / f"{request_id}.json").stat().st_mode & 0o037 == 0, "no other user writes it"


def test_one_of_two_has_it_and_what_came_of_it_is_a_line(paths: RunPaths) -> None:
    request_id = ask(paths, STOP)
    with carrying(paths, "job 11_1") as one, carrying(paths, "ann@login") as other:
        had = one.take(request_id)
        assert had is not None and other.take(request_id) is None
        assert [item.id for item in taken(paths)] == [request_id] and waiting(paths) == []
        one.answer(had, Outcome.DONE, "left at iteration 7")
    (line,) = audited(paths)
    assert (line.id, line.action, line.asked_by, line.why, line.by) == (
        request_id,
        "stop",
        account_name(),
        "too hot",
        "job 11_1",
    )
    assert (line.outcome, line.words, line.job) == ("done", "left at iteration 7", "11_1")
    assert not list((paths.requests / "taken").iterdir())


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("", ()),
        ('{"action": "sto', ()),
        ("[]", ()),
        ('{"action": "stop", "job": 12}', ()),
        ('{"action": "save", "job": "1"' + " " * 70_000 + "}", ()),
        ('{"schema_version": 2, "action": "stop", "job": "12"}', ("version 2",)),
        ('{"action": "run", "command": "id"}', ("run", "save, stop, requeue")),
        (r'{"action": "\u001b[2J", "job": "1"}', (r"\x1b[2J",)),
        ('{"action": "stop"}', ("job",)),
        ('{"action": "stop", "job": "12; id"}', ("job",)),
        ('{"action": "extend-chain", "tasks": 100000}', ("1 to 1000",)),
        ('{"action": "extend-chain", "tasks": 0}', ("1 to 1000",)),
        ('{"action": "stop", "job": "3", "within_s": -1}', ("time",)),
    ],
)
def test_an_invalid_request_has_a_problem(paths: RunPaths, text: str, facts: tuple[str, ...]) -> None:
    lying_there(paths).write_text(text)
    found = look(paths, "x")
    assert found is not None and found.problem and missing(found.problem, *facts) == []


def test_a_file_with_fields_of_a_later_release_is_read(paths: RunPaths) -> None:
    lying_there(paths).write_text('{"action": "save", "job": "3", "colour": "red"}')
    found = look(paths, "x")
    assert found is not None and not found.problem and found.request is not None and found.request.job == "3"


@pytest.mark.parametrize("kind", ["link", "hard link", "folder", "fifo", "open to all"])
def test_what_could_be_anothers_word_is_none_and_goes(paths: RunPaths, tmp_path: Path, kind: str) -> None:
    path = lying_there(paths)
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(json.dumps({"action": "stop", "job": "12"}))
    make: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(elsewhere),
        "hard link": lambda: path.hardlink_to(elsewhere),
        "folder": path.mkdir,
        "fifo": lambda: os.mkfifo(path),
        "open to all": lambda: path.write_text(elsewhere.read_text()),
    }
    make[kind]()
    if kind == "open to all":
        path.chmod(0o666)
    with carrying(paths, "job 1") as carrier:
        found = carrier.take("x")
        assert found is not None and found.request is None and found.problem.startswith("the request ")
        carrier.answer(found, Outcome.REFUSED, found.problem)
        assert carrier.left_by_the_dead() == []
    assert not list((paths.requests / "taken").iterdir()) and elsewhere.exists()
    assert audited(paths)[0].outcome == "refused"


def test_names_that_are_no_requests_are_left_alone(paths: RunPaths) -> None:
    place = lying_there(paths).parent
    for name in (".x.json", "x.txt", "a b.json", "x.json.tmp", f"{'a' * 80}.json"):
        (place / name).write_text("{}")
    assert waiting(paths) == []


def test_when_it_was_asked_is_the_file_servers_word_whatever_the_asker_sets(paths: RunPaths) -> None:
    request_id = ask(paths, STOP)
    before = look(paths, request_id)
    for moment in (0, 4_000_000_000):
        os.utime(paths.requests / f"{request_id}.json", (moment, moment))
    after = look(paths, request_id)
    assert before is not None and after is not None
    assert abs((after.at - before.at).total_seconds()) < 60
    with carrying(paths, "job 1") as carrier:
        had = carrier.take(request_id)
        assert had is not None and abs((had.at - before.at).total_seconds()) < 60


TAKE_AND_DIE = """
import os, sys
from pathlib import Path
from opsctl.run.state.requests import Carrier
from opsctl.run.config.paths import RunPaths
carrier = Carrier(RunPaths(Path(sys.argv[1])), "job 1")
assert carrier.take(sys.argv[2])
print("has it", flush=True)
sys.stdin.read()
os._exit(9)
"""


def test_what_a_process_that_died_had_begun_is_found_and_what_a_living_one_does_is_left(paths: RunPaths) -> None:
    request_id = ask(paths, STOP)
    words = [sys.executable, "-c", TAKE_AND_DIE, str(paths.output), request_id]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == b"has it\n"
        carrier = Carrier(paths, "ann@login")
        assert carrier.left_by_the_dead() == []
    finally:
        child.stdin.close()
        child.wait(20)
        child.stdout.close()
    (left,) = carrier.left_by_the_dead()
    assert (left.id, left.request) == (request_id, STOP)
    carrier.answer(left, Outcome.FAILED, "the result is not known")
    assert carrier.left_by_the_dead() == [] and taken(paths) == [] and len(audited(paths)) == 1
    carrier.close()


def test_what_a_process_that_died_had_answered_is_not_answered_again(paths: RunPaths) -> None:
    dead = Carrier(paths, "job 1")
    had = dead.take(ask(paths, STOP))
    assert had is not None
    append_state(paths.output, paths.audit, told_of(had))
    dead.close()
    carrier = Carrier(paths, "ann@login")
    assert carrier.left_by_the_dead() == [] and taken(paths) == [] and len(audited(paths)) == 1


def test_taking_a_request_changes_its_file_and_not_when_it_was_asked(paths: RunPaths) -> None:
    request_id = ask(paths, STOP)
    asked = look(paths, request_id)
    assert asked is not None
    wait_until = asked.at.timestamp() + 1
    while time.time() < wait_until:  # the file server's clock shows another second
        time.sleep(0.02)
    with carrying(paths, "job 1") as carrier:
        had = carrier.take(request_id)
    assert had is not None and had.at == asked.at


def test_a_request_whose_answer_a_full_disk_does_not_take_is_left_to_the_next_process(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_id = ask(paths, STOP)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(paths.audit))

    with carrying(paths, "job 1") as carrier, monkeypatch.context() as patched:
        had = carrier.take(request_id)
        assert had is not None
        patched.setattr(carrier_module, "append_state", full)
        carrier.answer(had, Outcome.DONE, "saved")
    assert len(taken(paths)) == 1
    with carrying(paths, "job 2") as carrier:
        assert [one.id for one in carrier.left_by_the_dead()] == [request_id]


def test_before_anything_was_asked_there_is_nothing(paths: RunPaths) -> None:
    assert (waiting(paths), taken(paths), audited(paths), look(paths, "x")) == ([], [], [], None)


def test_a_request_that_is_seen_late_or_still_seen_when_it_is_gone_is_answered_once(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for what NFS clients remember of a folder: an older listing. What is opened and renamed is real."""
    with carrying(paths, "a job") as first, carrying(paths, "a cron tick") as second:
        with monkeypatch.context() as late:
            late.setattr(requests_module, "_names", lambda *_: [])
            name = ask(paths, Request(action="save", owner="root"))
            assert waiting(paths) == [] and taken(paths) == [] and audited(paths) == []
        assert waiting(paths) == [name]
        listed = waiting(paths)
        asked = first.take(name)
        assert asked is not None and asked.request is not None
        with monkeypatch.context() as late:
            late.setattr(requests_module, "_names", lambda *_: listed)
            assert [second.take(one) for one in waiting(paths)] == [None]
        first.answer(asked, Outcome.DONE, "saved")
        with monkeypatch.context() as late:
            late.setattr(requests_module, "_names", lambda *_: listed)
            assert [second.take(one) for one in waiting(paths)] == [None]
    assert [(one.id, one.outcome) for one in audited(paths)] == [(name, "done")]
