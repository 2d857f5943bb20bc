from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from opsctl.core.errors import SlurmError, SlurmUnasked, SlurmUnreachable
from opsctl.slurm import cache as cache_module
from opsctl.slurm.cache import CachedSlurm, SharedStore, cached_client, forget
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.commands import CommandClient
from opsctl.slurm.nodes import Node
from opsctl.slurm.types import Job
from tests.unit.monitoring.jobs import HELD, RUNNING

NODES = [Node("node1", "idle", "", ("gpu*",)), Node("node9", "down*", "no answer", ("gpu*", "all"))]


class Slurm:
    """Counts its questions; out of reach with `error`; `during` happens while it is asked."""

    def __init__(self, jobs: list[Job]) -> None:
        self.queue, self.asked = jobs, 0
        self.error: Exception | None = None
        self.during: Any = None
        self.queue_age_s = 0.0

    def jobs(self, users: Any = None, job_ids: Any = None) -> list[Job]:
        self.asked += 1
        found = list(self.queue)
        if self.during:
            self.during()
        if self.error:
            raise self.error
        return found

    def nodes(self, folded: str | None = None) -> list[Node]:
        self.asked += 1
        return NODES

    def hides_others_jobs(self) -> bool:
        self.asked += 1
        return False


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The account's folder of answers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "opsctl" / "answers" / "host-0"
    folder.mkdir(parents=True)
    for one in (folder, *list(folder.parents)[:2]):
        one.chmod(0o700)
    return folder


@pytest.fixture
def slurm() -> Slurm:
    return Slurm([RUNNING, HELD])


class Clock:
    """Both clocks of the host, moved by hand."""

    def __init__(self) -> None:
        self.wall_s, self.since_start_s = 1_000_000.0, 5000.0

    def go_on(self, seconds: float) -> None:
        self.wall_s += seconds
        self.since_start_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("opsctl.slurm.cache.time.time", lambda: found.wall_s)
    monkeypatch.setattr(cache_module, "_since_start_s", lambda: found.since_start_s)
    return found


def look(slurm: Slurm, cache: Path, most_s: float = 40.0) -> CachedSlurm:
    return CachedSlurm(lambda: slurm, most_s, 5.0, SharedStore(cache))  # type: ignore[arg-type, return-value]


def test_a_second_look_takes_the_first_ones_answer_whole_and_says_how_old_it_is(
    slurm: Slurm, cache: Path, clock: Clock
) -> None:
    first = look(slurm, cache)
    assert first.jobs() == [RUNNING, HELD] and first.queue_age_s == 0
    clock.go_on(25)
    second = look(slurm, cache)
    assert second.jobs() == [RUNNING, HELD] and second.queue_age_s == 25
    assert slurm.asked == 1


def test_a_narrowed_question_is_answered_from_the_whole_queue(slurm: Slurm, cache: Path, clock: Clock) -> None:
    shared = look(slurm, cache)
    assert shared.jobs(job_ids=[HELD.job_id]) == [HELD] and shared.jobs(users=["nobody"]) == []
    assert shared.jobs() == [RUNNING, HELD] and slurm.asked == 1


def test_of_a_cluster_that_must_not_be_asked_no_answer_is_shared(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_folder_of", lambda *_: cache)
    monkeypatch.delenv("OPSCTL_ANSWERS_AGE", raising=False)
    assert isinstance(cached_client(Cluster()), CachedSlurm)
    closed = cached_client(Cluster(out_of_bounds="its slurm.conf is shared"))
    assert not isinstance(closed, CachedSlurm)
    with pytest.raises(SlurmError, match="is shared"):
        closed.jobs()


def test_the_queue_counts_forty_seconds_nodes_two_minutes_and_the_configuration_a_day(
    slurm: Slurm, cache: Path, clock: Clock
) -> None:
    questions = []
    for seconds in (0, 39, 2, 80, 86400):
        clock.go_on(seconds)
        before = slurm.asked
        one = look(slurm, cache)
        one.jobs(), one.nodes(), one.hides_others_jobs()
        questions.append(slurm.asked - before)
    assert questions == [3, 0, 1, 2, 3]  # all; none; the queue; queue and nodes; all


def test_of_nodes_the_wanted_ones_are_told(slurm: Slurm, cache: Path) -> None:
    assert look(slurm, cache).nodes("node[8-9]") == [NODES[1]] and look(slurm, cache).nodes() == NODES


def test_who_wants_it_fresh_asks_and_the_others_have_it_too(slurm: Slurm, cache: Path, clock: Clock) -> None:
    look(slurm, cache).jobs()
    clock.go_on(1)
    slurm.queue = []
    assert look(slurm, cache, 0.0).jobs() == [] and look(slurm, cache).jobs() == []
    assert slurm.asked == 2


@pytest.mark.parametrize("step_s", [-3600, -20, 20, 3600])
def test_a_clock_that_is_set_makes_no_old_answer_young(slurm: Slurm, cache: Path, clock: Clock, step_s: float) -> None:
    look(slurm, cache).jobs()
    clock.go_on(30)
    clock.wall_s += step_s
    look(slurm, cache).jobs()
    assert slurm.asked == 2
    clock.go_on(30)
    look(slurm, cache).jobs()
    assert slurm.asked == 2  # and the new one counts as long as any


def test_an_answer_from_before_the_host_started_counts_for_nothing(slurm: Slurm, cache: Path, clock: Clock) -> None:
    look(slurm, cache).jobs()
    clock.wall_s, clock.since_start_s = clock.wall_s + 86400, 5010.0
    look(slurm, cache).jobs()
    assert slurm.asked == 2


def test_after_a_change_nothing_that_was_asked_for_before_it_counts(slurm: Slurm, cache: Path) -> None:
    look(slurm, cache).jobs()
    slurm.queue = []
    forget()
    assert look(slurm, cache).jobs() == []
    slurm.during = forget  # a user submits while another one asks
    forget()
    look(slurm, cache).jobs()
    slurm.during = None
    before = slurm.asked
    look(slurm, cache).jobs()
    assert slurm.asked == before + 1


def test_an_outage_is_remembered_for_seconds_only(slurm: Slurm, cache: Path, clock: Clock) -> None:
    slurm.error = SlurmUnreachable("Slurm does not answer (squeue: socket timed out)")
    for _ in range(3):
        with pytest.raises(SlurmUnreachable, match="socket timed out"):
            look(slurm, cache).jobs()
    assert slurm.asked == 1
    clock.go_on(6)
    slurm.error = None
    assert look(slurm, cache).jobs() and slurm.asked == 2


def test_a_shared_error_is_of_the_class_that_was_raised(slurm: Slurm, cache: Path) -> None:
    for error in (SlurmUnasked("no slurm.conf"), SlurmUnreachable("no answer"), SlurmError("refused")):
        forget()
        slurm.error = error
        for _ in range(2):
            with pytest.raises(SlurmError) as seen:
                look(slurm, cache).jobs()
            assert type(seen.value) is type(error)
    assert slurm.asked == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_text(""),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "value": [{"job_id": "x"}]})),
        lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), "value": None})),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.rename(path.parent / "there"), path.symlink_to(path.parent / "there")),
        lambda path: os.chown(path, 65534, 65534) if os.geteuid() == 0 else path.unlink(),
        lambda path: path.chmod(0o666),
    ],
    ids=["cut", "empty", "another shape", "nothing", "a folder", "a link", "another user's", "open to all"],
)
def test_what_is_damaged_or_anothers_is_passed_over(slurm: Slurm, cache: Path, damage: Any) -> None:
    look(slurm, cache).jobs()
    damage(cache / "queue.json")
    assert look(slurm, cache).jobs() == [RUNNING, HELD] and slurm.asked == 2


def test_a_disk_that_takes_nothing_makes_everybody_ask_for_himself(
    slurm: Slurm, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module, "write_atomically", full)
    for _ in range(2):
        assert look(slurm, cache).jobs()
    assert slurm.asked == 2


def test_the_folder_is_the_accounts_own_and_its_files_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    monkeypatch.setenv("OPSCTL_ANSWERS_AGE", "40")
    monkeypatch.setattr(CommandClient, "jobs", lambda *_: [RUNNING])
    client = cached_client(Cluster())
    assert isinstance(client, CachedSlurm) and client.jobs() == [RUNNING]
    answers = tmp_path / "new" / "opsctl" / "answers"
    (folder,) = answers.iterdir()
    assert [one.stat().st_mode & 0o777 for one in (answers.parent, answers, folder)] == [0o700] * 3
    assert (folder / "queue.json").stat().st_mode & 0o077 == 0
    folder.chmod(0o770)
    assert isinstance(cached_client(Cluster()), CommandClient)  # others may have written there


@pytest.mark.parametrize("age", ["0", "-1"])
def test_it_can_be_turned_off(age: str, tmp_path: Path) -> None:
    environment = {"OPSCTL_ANSWERS_AGE": age, "XDG_CACHE_HOME": str(tmp_path)}
    assert isinstance(cached_client(Cluster(), environment=environment), CommandClient)
    assert list(tmp_path.iterdir()) == []


def test_two_clusters_do_not_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"OPSCTL_ANSWERS_AGE": "40", "XDG_CACHE_HOME": str(tmp_path)}
    for conf in ("/a/slurm.conf", "/b/slurm.conf"):
        assert isinstance(cached_client(Cluster(slurm_conf=conf), environment=environment), CachedSlurm)
    assert len(list((tmp_path / "opsctl" / "answers").iterdir())) == 2


LOOKER = """
import sys
from opsctl.slurm.cache import cached_client
from opsctl.slurm.cluster import Cluster
print("ready", flush=True)
sys.stdin.readline()
print(len(cached_client(Cluster()).jobs()))
"""


def test_processes_that_look_at_once_ask_slurm_once(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "squeue").write_text(f"#!/bin/sh\necho asked >>{tmp_path}/asked\nsleep 0.5\n")
    (programs / "squeue").chmod(0o755)
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment = {**os.environ, **own, "OPSCTL_ANSWERS_AGE": "40"}
    lookers = [
        subprocess.Popen(
            [sys.executable, "-c", LOOKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for _ in range(3)
    ]
    for one in lookers:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in lookers:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    answers = [one.communicate(timeout=60) for one in lookers]
    assert [out for out, _ in answers] == ["0\n"] * 3, answers
    assert (tmp_path / "asked").read_text().splitlines() == ["asked"]


@pytest.mark.nightly
def test_a_kept_answer_of_5000_jobs_is_read_within_a_second(slurm: Slurm, cache: Path) -> None:
    slurm.queue = [RUNNING] * 5000
    look(slurm, cache).jobs()
    began = time.process_time()  # its own: what else the machine does is no matter
    assert len(look(slurm, cache).jobs()) == 5000
    assert time.process_time() - began < 1.0
    assert slurm.asked == 1


def test_what_was_changed_is_put_down_in_no_folder_that_others_have_laid_ready(tmp_path: Path, cache: Path) -> None:
    forget()
    assert (cache.parent / "changed").exists()
    own, planted = tmp_path / "own", tmp_path / "planted" / "opsctl"
    own.mkdir(mode=0o700)
    (own / "changed").write_text("mine")
    planted.mkdir(parents=True)
    (planted / "answers").symlink_to(own)
    for folder in (planted.parent, planted):
        folder.chmod(0o777)
    forget({"XDG_CACHE_HOME": str(planted.parent)})
    assert (own / "changed").read_text() == "mine"


def test_a_command_that_prints_once_takes_no_answer_that_a_screen_that_stays_still_takes(
    cache: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm([RUNNING])
    monkeypatch.setattr(cache_module, "_folder_of", lambda *_: cache)
    monkeypatch.setattr(cache_module, "client_for", lambda *_: slurm)

    def asks(**how: Any) -> bool:
        before = slurm.asked
        cached_client(Cluster(), environment={}, **how).jobs()
        return slurm.asked > before

    assert asks()
    clock.go_on(4)
    assert not asks() and not asks(is_live=True)
    clock.go_on(10)
    assert not asks(is_live=True) and asks()
    clock.go_on(1)
    assert asks(is_fresh=True)


def test_without_limits_each_question_is_asked_once_and_an_error_stays(slurm: Slurm) -> None:
    once = CachedSlurm(lambda: slurm)  # type: ignore[arg-type, return-value]
    for _ in range(3):
        assert once.jobs() == slurm.queue and not once.hides_others_jobs() and once.nodes("node[8-9]") == [NODES[1]]
    assert slurm.asked == 3
    slurm.error = SlurmUnreachable("no answer")
    failed = CachedSlurm(lambda: slurm)  # type: ignore[arg-type, return-value]
    for _ in range(3):
        with pytest.raises(SlurmUnreachable, match="no answer"):
            failed.jobs()
    assert slurm.asked == 4


@pytest.mark.parametrize("error", [None, SlurmUnreachable("no answer"), SlurmError("refused")], ids=str)
@pytest.mark.parametrize("is_shared", [True, False])
def test_live_screens_ask_at_most_twice_in_any_minute(
    slurm: Slurm, cache: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_shared: bool, error: SlurmError | None
) -> None:
    slurm.error, asked_at = error, list[float]()
    monkeypatch.setattr(cache_module, "_folder_of", lambda *_: cache if is_shared else None)
    monkeypatch.setattr(cache_module, "client_for", lambda *_: slurm)
    screens = [cached_client(Cluster(), environment={}, is_live=True) for _ in range(3 if is_shared else 1)]
    for second in range(1800):
        clock.go_on(1)
        before = slurm.asked
        with contextlib.suppress(SlurmError):
            screens[second % len(screens)].jobs()
        screens[second % len(screens)].nodes("node9")
        asked_at += [clock.wall_s] * (slurm.asked - before)
    assert max(sum(0 <= at - begin < 60 for at in asked_at) for begin in asked_at) <= (3 if error else 2)
    assert len(asked_at) >= 30


def test_an_answer_that_another_process_had_before_keeps_its_age(slurm: Slurm, clock: Clock) -> None:
    screen = CachedSlurm(lambda: slurm, 60.0)  # type: ignore[arg-type, return-value]
    slurm.queue_age_s = 50.0
    screen.jobs()
    assert screen.queue_age_s == 50.0
    clock.go_on(11)
    screen.jobs()
    assert slurm.asked == 2
