"""Test what the running job does of requests. The test stands for the trainer, and for Slurm where one is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from opsctl.core.account import account_name
from opsctl.core.errors import SlurmError
from opsctl.jobs.runner import requests as requests_module
from opsctl.jobs.runner.requests import RequestHandler
from opsctl.jobs.runner.task import Task
from opsctl.jobs.signals import Signals
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.config.load import load_run_file
from opsctl.run.state import requests, revisions
from opsctl.run.state.requests import Action, Audited, Request, ask, audited
from opsctl.slurm.types import Job
from tests.tiny_run import ready, write_run
from tests.unit.jobs.runner.test_task import task_in
from tests.unit.monitoring.jobs import RUNNING
from trainer.formats.attempt.attempt_records import (
    LEAVING_NOTE,
    SAVE_REQUEST,
    SAVED_NOTE,
    LeavingNote,
    SavedNote,
    SaveRequest,
)
from trainer.formats.json_text import json_file_text

ENDED = Attempt(
    number=1, id="a", job_id=12, reason="stop-request", iteration_at_end=7, checkpoint_at_end=7, iteration_at_start=2
)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Slurm:
    """A Slurm that notes what it is told about jobs."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.refuses = False
        self.queue: list[Job] = []

    def jobs(self, **_: object) -> list[Job]:
        return self.queue

    def hold(self, ids: list[str]) -> None:
        self.told.append(f"hold {' '.join(ids)}")

    def allow_requeue(self, job_id: int, allowed: bool) -> None:
        if self.refuses:
            raise SlurmError("Slurm refused to let job 12 be requeued: no")
        self.told.append(f"requeue of {job_id} allowed: {allowed}")

    def requeue(self, job_id: int) -> None:
        self.told.append(f"requeue {job_id}")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm()
    monkeypatch.setattr(requests_module, "client_for", lambda *_, **__: found)
    return found


@pytest.fixture
def task(tmp_path: Path) -> Task:
    tmp_path.chmod(0o750)
    revisions.publish(ready(load_run_file(write_run(tmp_path))))
    found = task_in(tmp_path)
    (tmp_path / "output").chmod(0o750)
    found = replace(found, allocation=replace(found.allocation, user=account_name()))
    found.paths.attempt_folder(12).mkdir(parents=True)
    return found


@pytest.fixture
def handler(task: Task, slurm: Slurm) -> Iterator[RequestHandler]:
    found = RequestHandler(task, every_s=0.02)
    found.attempt_ids = ["a0", "a"]
    found.start()
    yield found
    found.finish(None, Signals())


def asked(task: Task, action: Action, **changes: object) -> str:
    request = Request(action=action, owner=account_name(), job="11_1", attempt="a", why="a test")
    return ask(task.paths, structs.replace(request, **changes))


def answer(task: Task, request_id: str) -> Audited:
    wait_for(lambda: requests.answer_to(task.paths, request_id))
    found = requests.answer_to(task.paths, request_id)
    assert found is not None
    return found


def say(task: Task, name: str, what: object) -> None:
    path = task.paths.attempt_folder(12) / name
    path.with_suffix(".new").write_text(json_file_text(what))
    path.with_suffix(".new").rename(path)


def test_saves_that_are_asked_for_together_are_one_save_of_the_trainer(handler: RequestHandler, task: Task) -> None:
    handler.begin_step()
    wish = task.paths.attempt_folder(12) / SAVE_REQUEST
    first = asked(task, Action.SAVE)
    wait_for(wish.exists)
    more = [asked(task, Action.SAVE), asked(task, Action.SAVE)]
    wait_for(lambda: not requests.waiting(task.paths))
    assert msgspec.json.decode(wish.read_bytes(), type=SaveRequest).id == first and not audited(task.paths)
    say(task, SAVED_NOTE, SavedNote(first, 5))
    saved = answer(task, first)
    assert saved.outcome == "done" and "iteration 5" in saved.words
    wait_for(lambda: msgspec.json.decode(wish.read_bytes(), type=SaveRequest).id in more)
    say(task, SAVED_NOTE, SavedNote(msgspec.json.decode(wish.read_bytes(), type=SaveRequest).id, 6, "no space left"))
    found = [answer(task, one) for one in more]
    assert {one.outcome for one in found} == {"failed"} and all("no space left" in one.words for one in found)


def test_a_stop_is_passed_on_and_answered_when_the_trainer_says_it_leaves(handler: RequestHandler, task: Task) -> None:
    handler.begin_step()
    stop = asked(task, Action.STOP)
    wait_for(task.paths.stop_request(12).exists)
    written = task.paths.stop_request(12).read_text()
    assert account_name() in written and "a test" in written
    assert not handler.is_overdue() and requests.answer_to(task.paths, stop) is None
    say(task, LEAVING_NOTE, LeavingNote("stop-request", 7, datetime.now(UTC)))
    found = answer(task, stop)
    assert found.outcome == "done" and "iteration 7" in found.words


def test_a_trainer_that_does_not_say_that_it_leaves_is_overdue_and_one_that_does_is_not(
    handler: RequestHandler, task: Task
) -> None:
    handler.begin_step()
    asked(task, Action.STOP)
    wait_for(lambda: handler.to_end)
    assert not handler.is_overdue()
    sooner = asked(task, Action.STOP, within_s=0)
    wait_for(handler.is_overdue)
    say(task, LEAVING_NOTE, LeavingNote("stop-request", 7))
    answer(task, sooner)
    assert not handler.is_overdue()


def test_who_asks_later_and_is_more_patient_takes_nobodys_hurry_away(handler: RequestHandler, task: Task) -> None:
    handler.begin_step()
    asked(task, Action.STOP, within_s=0)
    wait_for(handler.is_overdue)
    asked(task, Action.STOP, within_s=600)
    wait_for(lambda: not requests.waiting(task.paths))
    assert answer(task, asked(task, Action.STOP, attempt="b")).outcome == "too-late"
    assert handler.is_overdue()


def test_of_the_queue_only_the_owners_jobs_of_this_very_run_are_touched(
    handler: RequestHandler, task: Task, slurm: Slurm
) -> None:
    own = structs.replace(RUNNING, job_id=12, array_job_id=11, user=account_name(), comment="opsctl run=run-1 submit=t")
    waits = structs.replace(
        own, job_id=20, array_job_id=20, array_task="1-3%1", state="PENDING", reason="Dependency", nodes=""
    )
    strangers = [
        structs.replace(waits, job_id=21, array_job_id=21, comment="opsctl run=run-2 submit=t"),
        structs.replace(waits, job_id=22, array_job_id=22, work_dir="/of/a/copy"),
        structs.replace(waits, job_id=23, array_job_id=23, user="nobody-else"),
        structs.replace(waits, job_id=24, array_job_id=24, comment=""),
    ]
    every = tuple(range(20, 25))
    slurm.queue = [waits, *strangers]
    lost = answer(task, asked(task, Action.HOLD_QUEUED, job="", chains=every))
    assert lost.outcome == "too-late", "a job that is not in the queue itself knows of no run"
    slurm.queue = [own, *slurm.queue]
    assert answer(task, asked(task, Action.HOLD_QUEUED, job="", chains=every)).outcome == "done"
    assert slurm.told == ["hold 20_[1-3]"]


def test_a_requeue_comes_after_the_end_and_only_where_slurm_allows_it(
    handler: RequestHandler, task: Task, slurm: Slurm
) -> None:
    slurm.refuses = True
    refused = answer(task, asked(task, Action.REQUEUE))
    assert (refused.outcome, handler.to_end) == ("failed", None) and "job 12" in refused.words
    slurm.refuses = False
    handler.begin_step()
    request_id = asked(task, Action.REQUEUE)
    wait_for(task.paths.stop_request(12).exists)
    second = answer(task, asked(task, Action.STOP))
    assert second.outcome == "refused"
    assert slurm.told == ["requeue of 12 allowed: True"]
    handler.finish(structs.replace(ENDED, reason="requeued"), Signals())
    assert slurm.told[1:] == ["requeue 12"]
    found = answer(task, request_id)
    assert found.outcome == "done" and "job 11_1" in found.words
    assert handler.to_end is not None and handler.to_end.ending == Ending.REQUEUED


def test_while_it_waits_for_its_turn_a_job_can_be_stopped_and_not_be_saved(handler: RequestHandler, task: Task) -> None:
    for action in (Action.SAVE, Action.STACKS):
        found = answer(task, asked(task, action))
        assert found.outcome == "refused" and "job 11_1" in found.words
    stop = asked(task, Action.STOP)
    wait_for(lambda: handler.to_end)
    assert not task.paths.stop_request(12).exists()
    handler.begin_step()
    assert task.paths.stop_request(12).exists(), "one that came just before the step is not lost"
    handler.finish(None, Signals())
    found = answer(task, stop)
    assert found.outcome == "done" and "iteration" not in found.words


def test_what_was_meant_for_another_life_of_the_job_comes_too_late_and_anothers_is_left(
    handler: RequestHandler, task: Task
) -> None:
    assert answer(task, asked(task, Action.STOP, attempt="b")).outcome == "too-late"
    others = [asked(task, Action.STOP, owner="nobody-else"), asked(task, Action.STOP, job="99_1", owner="ben")]
    assert answer(task, asked(task, Action.SAVE)).outcome == "refused"
    assert sorted(requests.waiting(task.paths)) == sorted(others) and handler.to_end is None


def test_a_word_of_an_earlier_save_answers_no_later_request(handler: RequestHandler, task: Task) -> None:
    handler.begin_step()
    say(task, SAVED_NOTE, SavedNote("of-an-earlier-one", 5))
    save = asked(task, Action.SAVE)
    wait_for((task.paths.attempt_folder(12) / SAVE_REQUEST).exists)
    for _ in range(2):  # two looks later
        answer(task, asked(task, Action.STOP, attempt="b"))
    assert requests.answer_to(task.paths, save) is None


def test_a_request_outlives_a_restart_in_the_job(handler: RequestHandler, task: Task) -> None:
    handler.begin_step()
    wish = task.paths.attempt_folder(12) / SAVE_REQUEST
    save = asked(task, Action.SAVE, attempt="a0")
    wait_for(wish.exists)
    wish.unlink()
    handler.begin_step()
    wait_for(wish.exists)
    say(task, SAVED_NOTE, SavedNote(save, 5))
    assert answer(task, save).outcome == "done"


def test_a_job_that_was_requeued_on_request_is_not_requeued_for_a_lost_node(task: Task, slurm: Slurm) -> None:
    again = RequestHandler(replace(task, allocation=replace(task.allocation, restart_count=1)), every_s=0.02)
    again.start()
    wait_for(lambda: slurm.told)
    again.finish(None, Signals())
    assert slurm.told == ["requeue of 12 allowed: False"]


def test_what_the_trainer_never_answered_is_answered_at_the_end(handler: RequestHandler, task: Task) -> None:
    handler.begin_step()
    save = asked(task, Action.SAVE)
    wait_for((task.paths.attempt_folder(12) / SAVE_REQUEST).exists)
    handler.finish(ENDED, Signals())
    found = answer(task, save)
    said = "the training ended after iteration 7 (stop-request), the last checkpoint is iteration 7"
    assert (found.outcome, found.words) == ("done", said)
    assert not requests.taken(task.paths)


def test_a_file_system_that_hangs_keeps_the_job_waiting_for_no_more_than_its_end(
    task: Task, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(requests, "waiting", lambda _: answers.wait(30) and [])
    monkeypatch.setattr(RequestHandler, "end_wait_s", 0.1)
    handler = RequestHandler(task, every_s=0.01)
    handler.start()
    began = time.monotonic()
    time.sleep(0.1)
    assert handler.news() == [] and not handler.is_overdue()
    handler.begin_step()
    handler.finish(ENDED, Signals())
    assert time.monotonic() - began < 25  # of the thirty that it hangs
    answers.set()


def test_trouble_is_said_once_and_its_end_too(
    handler: RequestHandler, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, said = requests.waiting, list[str]()

    def broken(_: object) -> list[str]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(requests, "waiting", broken)

    def hear() -> list[str]:
        said.extend(handler.news())
        return said

    wait_for(hear)
    time.sleep(0.1)
    assert len(hear()) == 1 and "Input/output error" in said[0]
    monkeypatch.setattr(requests, "waiting", really)
    wait_for(lambda: hear()[1:])
    assert said[1].startswith("opsctl: ") and "error" not in said[1]
