"""Requests of the run's group that the running job carries out, next to its step or its wait for one.

The main thread ends a step that is overdue.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.files.state_files import write_state
from opsctl.jobs.control.carry_out import Queue, on_queue, settle
from opsctl.jobs.runner.hang_watch import patience_s
from opsctl.jobs.runner.stacks import stacks_into
from opsctl.jobs.runner.task import Allocation, Task, request_stop
from opsctl.jobs.runner.watch_thread import WatchThread, in_background
from opsctl.jobs.signals import Signals
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.state import requests
from opsctl.run.state.attempt_folder import exit_report, leaving_note, saved_note
from opsctl.run.state.chosen_cluster import cluster_to_submit_to
from opsctl.run.state.requests import OF_A_JOB, Action, Asked, Carrier, Outcome, Request, in_a_line
from opsctl.slurm.backends import client_for
from opsctl.slurm.job_match import parse_comment
from opsctl.slurm.types import Job
from trainer.formats.attempt.attempt_records import SAVE_REQUEST, SaveRequest

#: How often the folder of requests is looked into, seconds.
POLL_S = 1.0
#: How often what is not for this job, but for its owner, is looked at; Slurm is asked only where there is such.
SETTLE_S = 60.0
#: The number of requests taken in one check; further ones wait for the next.
_MOST_A_LOOK = 20


class RequestHandler(WatchThread):
    """Carries out what is asked of one task's job, and of what its owner has queued."""

    def __init__(self, task: Task, every_s: float = POLL_S) -> None:
        super().__init__("requests")
        self.task, self.every_s = task, every_s
        self.to_end: ToEnd | None = None
        self.attempt_ids: list[str] = []  # of this job, the present one last
        self.attempt: Attempt | None = None  # as it ended
        self.unstarted = ""  # why its step could not be started
        self._is_in_step = False
        self._carrier = Carrier(task.paths, f"job {task.allocation.display_id} of {account_and_host()}")
        self._saves: list[Asked] = []  # to be asked of the trainer
        self._asked_saves: list[Asked] = []  # of it, under the first one's id
        self._ends: list[tuple[Asked, str]] = []  # with what else was done for it
        self._stacks: deque[tuple[Asked, Outcome, str]] = deque()
        self._ends_hard_at: float | None = None
        self._has_word = False  # the trainer has said that it leaves
        self._settled_at: float | None = None
        self._is_first = True
        self._lock = threading.Lock()

    def begin_step(self) -> None:
        """Note that a step begins, whose ranks read the attempt's folder. Saves that no rank answered are due again."""
        with self._locked():
            self._is_in_step = True
            self._saves, self._asked_saves = [*self._asked_saves, *self._saves], []
            self._ask_trainer_to_end()

    def is_overdue(self) -> bool:
        """Return whether the trainer was asked to leave and has not said in time that it does."""
        at = self._ends_hard_at
        return at is not None and not self._has_word and time.monotonic() >= at

    def finish(self, attempt: Attempt | None, signals: Signals) -> None:
        """Finish the job with `attempt`, if any: requeue it if requested, and answer the open requests. Runs once."""
        if self._stopped.is_set():
            return
        self.stop()
        with self._locked():
            outcome, words = left(attempt)
            if self.to_end is not None and self.to_end.ending == Ending.REQUEUED:
                outcome, words = self._requeue(words, signals)
            for asked, more in self._ends:
                self._answer(asked, outcome, f"{words}{more}")
            for asked in (*self._asked_saves, *self._saves):
                self._answer(asked, *left_unsaved(attempt))
            while self._stacks:
                self._answer(*self._stacks.popleft())
            self._carrier.close()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the thread, or continue without it where the thread hangs."""
        had = self._lock.acquire(timeout=self.end_wait_s)
        try:
            yield
        except (OSError, ValueError) as error:
            self._note(str(error))
        finally:
            if had:
                self._lock.release()

    def _folder(self) -> Path:
        """Return the attempt's folder, where the output folder is now."""
        return self.task.paths.attempt_folder(self.task.allocation.job_id)

    def check(self) -> float:
        """Carry out what is asked for now."""
        if self._is_first and self.task.allocation.restart_count:
            # It was let into the queue once, on request; a lost node is to be the next task's.
            with contextlib.suppress(SlurmError):
                client_for(self.task.cluster).allow_requeue(self.task.allocation.job_id, allowed=False)
        self._is_first = False
        try:
            with self._lock:
                self._check_folder()
            self._note("")
        except (OSError, ValueError, OpsctlError) as error:
            self._note(str(error))
        return self.every_s

    def _note(self, trouble: str) -> None:
        line = f"opsctl: requests cannot be seen to: {trouble}" if trouble else ""
        self.report_trouble(line, "opsctl: requests are seen to again")

    def _check_folder(self) -> None:
        waiting = requests.waiting(self.task.paths)
        for request_id in waiting[:_MOST_A_LOOK]:
            asked = requests.look(self.task.paths, request_id)
            if asked is not None and self._is_ours(asked):
                had = self._carrier.take(request_id)
                if had is not None:
                    self._handle(had)
        self._answer_saves()
        self._answer_ends()
        while self._stacks:
            self._answer(*self._stacks.popleft())
        if self._settled_at is None or time.monotonic() - self._settled_at >= SETTLE_S:
            self._settled_at = time.monotonic()
            own = self.task.allocation
            settle(self._carrier, self.task.paths, own.user, self._queue, own.display_id)

    def _is_ours(self, asked: Asked) -> bool:
        request, job = asked.request, self.task.allocation
        if asked.problem or request is None:
            return True
        return request.owner == job.user and request.job in ("", job.display_id)

    def _handle(self, asked: Asked) -> None:
        request = asked.request
        if asked.problem or request is None:
            self._answer(asked, Outcome.REFUSED, asked.problem)
        elif not self._is_ours(asked):
            self._answer(asked, Outcome.REFUSED, "the request was changed while it was read")
        elif request.action not in OF_A_JOB:
            result = on_queue(request, asked.asker, self._queue())
            self._answer(asked, result.outcome, result.words)
        elif request.attempt not in ("", *self.attempt_ids):
            job = self.task.allocation.display_id
            self._answer(asked, Outcome.TOO_LATE, f"job {job} has been started again since: its time has passed")
        elif request.action in (Action.STOP, Action.REQUEUE):
            self._end(asked, request)
        elif not self._is_in_step:
            job = self.task.allocation.display_id
            self._answer(asked, Outcome.REFUSED, f"job {job} trains nothing yet: it waits for its turn")
        elif request.action == Action.SAVE:
            self._report_asked(asked, "save and train on")
            self._saves.append(asked)
        else:
            self._report_asked(asked, "take stacks")
            if in_background(partial(self._take_stacks, asked), "stacks") is None:
                self._answer(asked, Outcome.FAILED, "this machine gives the job no more threads")

    def _report_asked(self, asked: Asked, what: str) -> None:
        why = in_a_line(asked.request.why) if asked.request else ""
        self.report(f"opsctl: {asked.asker} asks to {what}" + (f": {why}" if why else ""))

    def _answer(self, asked: Asked, outcome: Outcome, words: str) -> None:
        self._carrier.answer(asked, outcome, in_a_line(words))
        if outcome != Outcome.DONE:
            self.report(f"opsctl: what {asked.asker} asks for is {outcome}: {in_a_line(words)}")

    def _queue(self) -> Queue:
        """Return the owner's jobs of this very run by Slurm's word: other users may write the files."""
        client = client_for(self.task.cluster)
        mine = of_this_run(client.jobs(), self.task.allocation)
        return Queue(self.task.paths, cluster_to_submit_to(None, self.task.paths), client, mine)

    def _answer_saves(self) -> None:
        if not self._is_in_step:
            return
        root = self.task.paths.output
        if self._asked_saves:
            note = saved_note(root, self._folder())
            if note is None or note.id != self._asked_saves[0].id:
                return
            for asked in self._asked_saves:
                if note.problem:
                    self._answer(asked, Outcome.FAILED, f"not saved, the training continues: {note.problem}")
                else:
                    self._answer(asked, Outcome.DONE, f"saved iteration {note.iteration}; the training continues")
            self._asked_saves = []
        if self._saves:
            write_state(root, self._folder() / SAVE_REQUEST, SaveRequest(self._saves[0].id))
            self._asked_saves, self._saves = self._saves, []

    def _end(self, asked: Asked, request: Request) -> None:
        ending = Ending.REQUEUED if request.action == Action.REQUEUE else Ending.STOP_REQUEST
        if self.to_end is not None and self.to_end.ending != ending:
            self._answer(asked, Outcome.REFUSED, f"{self.to_end.words()}, which comes first")
            return
        if ending == Ending.REQUEUED:
            try:
                client_for(self.task.cluster).allow_requeue(self.task.allocation.job_id, allowed=True)
            except SlurmError as error:
                self._answer(asked, Outcome.FAILED, f"nothing was stopped: {error}")
                return
        more = "; queued tasks stay queued"
        if ending == Ending.REQUEUED:
            more = ""
        elif request.queued_too:
            more = f"; {on_queue(request, asked.asker, self._queue()).words}"
        self._ends.append((asked, more))
        if self.to_end is None:
            self.to_end = ToEnd(asked.asker, in_a_line(request.why), ending)
            self.report(f"opsctl: {self.to_end.words()}")
        within_s = patience_s(self.task) if request.within_s is None else float(request.within_s)
        at = time.monotonic() + within_s
        self._ends_hard_at = at if self._ends_hard_at is None else min(at, self._ends_hard_at)
        self._ask_trainer_to_end()

    def _ask_trainer_to_end(self) -> None:
        if self.to_end is not None and self._is_in_step:
            path = self.task.paths.stop_request(self.task.allocation.job_id)
            request_stop(self.task.paths.output, path, self.to_end.words())

    def _answer_ends(self) -> None:
        """Answer requests to stop as soon as the trainer reports that it leaves; a requeue comes later."""
        if not self._ends or not self._is_in_step or self._has_word:
            return
        root = self.task.paths.output
        note = leaving_note(root, self._folder())
        if not (note.reason or exit_report(root, self._folder()).reason):
            return
        self._has_word = True
        if self.to_end is not None and self.to_end.ending != Ending.REQUEUED:
            for asked, more in self._ends:
                self._answer(asked, Outcome.DONE, f"seen after iteration {note.iteration}: it saves and leaves{more}")
            self._ends = []

    def _requeue(self, words: str, signals: Signals) -> tuple[Outcome, str]:
        job = self.task.allocation
        try:
            client_for(self.task.cluster).requeue(job.job_id)
        except SlurmError as error:
            if signals.ended_at is None:  # else Slurm has begun with it, and ended what asked for it too
                return Outcome.FAILED, f"{words}, but {error}"
        again = (
            "Slurm starts it again in some minutes; until then the next task, if there is one, continues the training"
        )
        return Outcome.DONE, f"{words}; job {job.display_id} is back in the queue: {again}"

    def _take_stacks(self, asked: Asked) -> None:
        path = self._folder() / f"stacks-{asked.id}.txt"
        try:
            self._stacks.append((asked, Outcome.DONE, stacks_into(path, self.task)[1]))
        except OpsctlError as error:
            self._stacks.append((asked, Outcome.FAILED, str(error)))


@dataclass(frozen=True)
class ToEnd:
    """A request that this job end."""

    asker: str
    why: str
    ending: Ending  # STOP_REQUEST, or REQUEUED

    def words(self) -> str:
        """`ben asks to requeue: node 7 is slow`."""
        what = "requeue" if self.ending == Ending.REQUEUED else "stop"
        return f"{self.asker} asks to {what}" + (f": {self.why}" if self.why else "")


def left(attempt: Attempt | None) -> tuple[Outcome, str]:
    """Return the answer to a request for the job's end."""
    if attempt is None:
        return Outcome.DONE, "it trained nothing yet and leaves"
    at = "" if attempt.iteration_at_end is None else f" after iteration {attempt.iteration_at_end}"
    saved = attempt.checkpoint_at_end
    kept = "no checkpoint is there" if saved is None else f"the last checkpoint is iteration {saved}"
    return Outcome.DONE, f"ended{at} ({attempt.reason}), {kept}"


def left_unsaved(attempt: Attempt | None) -> tuple[Outcome, str]:
    """Return the answer to a request for a save that the trainer has not answered."""
    outcome, words = left(attempt)
    has_it = attempt is not None and attempt.iteration_at_end == attempt.checkpoint_at_end is not None
    return (outcome if has_it else Outcome.FAILED), f"the training {words}" if attempt else "the job trained nothing"


def of_this_run(jobs: Sequence[Job], own: Allocation) -> list[Job]:
    """Those of the job's account, run and working folder; none where it is not among `jobs` itself."""
    this = next((job for job in jobs if job.job_id == own.job_id), None)
    comment = parse_comment(this.comment) if this is not None else None
    if this is None or comment is None:
        return []
    return [
        job
        for job in jobs
        if job.user == own.user
        and job.work_dir == this.work_dir
        and (said := parse_comment(job.comment)) is not None
        and said.run_id == comment.run_id
    ]
