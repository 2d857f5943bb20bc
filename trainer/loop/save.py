"""Saving as the training goes on: when it is due, when asked to and before leaving."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from copy import copy
from datetime import datetime

from deepspeed.runtime.pipe.engine import PipelineEngine

from trainer.checkpoint.destination import Destination, Overtaken
from trainer.checkpoint.save import (
    SaveTimes,
    SaveUnderWay,
    begin_save,
    save_checkpoint,
)
from trainer.engine.snapshot import HostCopies
from trainer.formats.attempt.attempt_records import SAVED_NOTE, SavedNote, SaveRequest
from trainer.formats.checkpoint.history import Progress
from trainer.formats.json_text import json_file_text
from trainer.formats.logs.log_lines import (
    BACKGROUND_TIMER,
    SAVE_TIMER,
    CheckpointFailed,
    Timers,
    write_checkpoint_line,
    write_timers,
)
from trainer.formats.tolerant import decode
from trainer.loop.finite import NotFinite
from trainer.loop.observer import Answer, Observer, Step
from trainer.loop.resuming import Contents, Place
from trainer.loop.tensorboard import Curves
from trainer.parallel.agreement import Refusal

# How often one that waits for another looks whether that is written, and whether the training leaves.
_LOOK_S = 0.2


class Saves(Observer):
    """Saves whenever `is_due` says so of an iteration, when asked to and before leaving, each iteration once.

    save: writes a checkpoint. begin: the same beside the training, of which one at a time is under way; None: never.
    saved_iteration: the one that the latest checkpoint has. One that could not be written beside the training ends
    nothing: the next save is a plain one, and what that one meets does. has_to_end: whether to leave, where one that is
    due waits for another; collective. when_saved: what is to be kept beside each checkpoint; returns at once.
    not_finite: why this state must not become the latest checkpoint; collective. folder: that of the checkpoints, for
    people. is_end: whether the training has reached its end.
    """

    def __init__(
        self,
        save: Callable[[Progress], SaveTimes],
        is_due: Callable[[int], bool],
        saved_iteration: int | None,
        tell: Callable[[str], None],
        curves: Curves,
        begin: Callable[[Progress], SaveUnderWay] | None = None,
        has_to_end: Callable[[], bool] = lambda: False,
        when_saved: Callable[[], None] = lambda: None,
        not_finite: Callable[[], NotFinite | None] = lambda: None,
        folder: str = "",
        is_end: Callable[[Progress], bool] = lambda _progress: False,
    ) -> None:
        self._save, self._begin, self._is_due, self._saved_iteration = save, begin, is_due, saved_iteration
        self._tell, self._curves, self._has_to_end, self._when_saved = tell, curves, has_to_end, when_saved
        self._not_finite, self._folder, self._is_end = not_finite, folder, is_end
        self._under_way: tuple[SaveUnderWay, Progress] | None = None
        self._answers: list[Answer] = []  # of who waits for the one under way
        self._has_failed = False  # the last one that was written beside the training

    def after_step(self, step: Step) -> None:
        """Publish what every rank has written by now; then begin a save where one is due.

        Raises Refusal where weights are not finite: no further step is worth its time.
        """
        if self._under_way is not None and self._under_way[0].is_written():
            self._publish()
        if self._is_due(step.progress.iteration):
            fault = self._save_or_begin(step.progress)
            if fault is not None and fault.ends_training:
                raise Refusal(fault.ending(step.progress.iteration))

    def when_asked_to_save(self, progress: Progress, answer: Answer) -> bool:
        """As where one is due: what is saved already is not saved again. The answer comes when it is the latest.

        Raises Refusal where the state is not finite.
        """
        fault = self._save_or_begin(progress)
        if fault is not None:
            raise Refusal(fault.why)
        if self._under_way is None:
            answer(progress.iteration, "")
        else:
            self._answers.append(answer)
        return True

    def before_going_back(self, progress: Progress) -> None:
        """Publish the one under way, as what is written beside the training reads none of its weights any more."""
        self._finish_what_is_under_way("going back")

    def after_going_back(self, progress: Progress) -> None:
        """Let later saves replace the existing ones.

        This iteration's too, if the training leaves here: the existing one does not record the rollback, and a start
        from it would come here again.
        """
        self._saved_iteration = None

    def before_leaving(self, progress: Progress) -> None:
        """Wait for the one under way, then save unless this very iteration is saved by now.

        A state that is not finite is not saved, and the training leaves as it was asked to. At the training's end that
        raises Refusal, as the training is not finished.
        """
        self._finish_what_is_under_way("leaving")
        if self._saved_iteration == progress.iteration:
            return
        fault = self._fault(progress)
        if fault is None:
            self._save_at_once(progress)
        elif self._is_end(progress):
            raise Refusal(fault.ending(progress.iteration))

    def before_leaving_unsaved(self, progress: Progress) -> None:
        """Publish the one under way: it was due, whatever the training came to since."""
        self._finish_what_is_under_way("leaving")

    def _save_or_begin(self, progress: Progress) -> NotFinite | None:
        """Save, unless the state is not finite: return why."""
        if self._saved_iteration == progress.iteration or self._is_under_way(progress.iteration):
            return None
        if not self._finish_what_is_under_way(f"saving iteration {progress.iteration}", self._has_to_end):
            return None  # the training leaves, and saves then
        fault = self._fault(progress)
        if fault is not None:
            return fault
        if self._begin is None or self._has_failed:
            self._save_at_once(progress)
        else:
            self._under_way = self._begin(progress), copy(progress)
        return None

    def _fault(self, progress: Progress) -> NotFinite | None:
        """Return why the state must not be saved, and log it. Collective."""
        fault = self._not_finite()
        if fault is not None:
            failed = CheckpointFailed(progress.iteration, self._folder, fault.why, not_finite=True)
            self._tell(write_checkpoint_line(failed))
        return fault

    def _is_under_way(self, iteration: int) -> bool:
        return self._under_way is not None and self._under_way[0].iteration == iteration

    def _finish_what_is_under_way(self, before: str, gives_up: Callable[[], bool] = lambda: False) -> bool:
        """Publish the one under way once it is written. False where it `gives_up` first, which all ranks agree on."""
        if self._under_way is None:
            return True
        save, started = self._under_way[0], time.monotonic()
        if not save.is_written():
            self._tell(f"waiting for the save of iteration {save.iteration} to be written before {before}")
            while not save.is_written():
                if gives_up():
                    return False
                time.sleep(_LOOK_S)
        self._publish(waited_ms=(time.monotonic() - started) * 1000)
        return True

    def _publish(self, waited_ms: float = 0.0) -> None:
        """Publish the current save. Raises Overtaken; any other refusal is reported, and the next save waits."""
        assert self._under_way is not None
        (under_way, progress), self._under_way = self._under_way, None
        answers, self._answers = self._answers, []
        problem = ""
        try:
            took = under_way.publish()
            self._count(SaveTimes(took.stall + waited_ms, took.background), progress)
        except Overtaken:
            raise
        except Refusal as refusal:
            problem, self._has_failed = str(refusal), True
            self._tell(write_checkpoint_line(CheckpointFailed(under_way.iteration, under_way.folder, problem)))
        for answer in answers:
            answer(under_way.iteration, problem)

    def _save_at_once(self, progress: Progress) -> None:
        self._count(self._save(progress), progress)
        self._has_failed = False

    def _count(self, took: SaveTimes, progress: Progress) -> None:
        """Report how long a complete checkpoint took."""
        self._saved_iteration = progress.iteration
        times = {SAVE_TIMER: took.stall}
        if took.background is not None:
            times[BACKGROUND_TIMER] = took.background
        self._tell(write_timers(Timers(times)))
        self._curves.times(times, progress)
        self._when_saved()


def saver(
    engine: PipelineEngine, destination: Destination, contents: Callable[[Progress], Contents], with_optimizer: bool
) -> Callable[[Progress], SaveTimes]:
    """Return a function that saves a checkpoint to `destination`."""

    def save(progress: Progress) -> SaveTimes:
        now = contents(progress)
        return save_checkpoint(engine, destination, now.manifest, now.client_state, with_optimizer)

    return save


def beginner(
    engine: PipelineEngine, destination: Destination, contents: Callable[[Progress], Contents], with_optimizer: bool
) -> Callable[[Progress], SaveUnderWay]:
    """Return a function that begins to save a checkpoint to `destination`, one at a time."""
    copies = HostCopies()

    def begin(progress: Progress) -> SaveUnderWay:
        now = contents(progress)
        return begin_save(engine, destination, now.manifest, now.client_state, copies, with_optimizer)

    return begin


class AskedSaves:
    """The waiting save request, and its answer. Only the first rank has a place for them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._asked: SaveRequest | None = None
        self._answered: SaveRequest | None = None
        self._unsaid: SavedNote | None = None  # what a full disk did not take
        self.are_due = False  # as all ranks have agreed

    def is_asked(self) -> bool:
        """Return whether a request waits without an answer. An unreadable one does not count."""
        self._say()
        if not self._place.is_taken():
            return False
        asked: SaveRequest | None = None
        with contextlib.suppress(OSError):
            asked = decode(self._place.read(), SaveRequest)
        if asked is None or asked == self._answered:
            return False
        self._asked = asked
        return True

    def carry_out(self, observers: Sequence[Observer], progress: Progress) -> None:
        """Let every observer that can save this iteration, unless it is saved. Collective, like their saves.

        An asynchronous save answers when all is written. A disk that takes no checkpoint is no reason to end the
        training: the answer says so.
        """
        asked = self._answered = self._asked

        def answer(iteration: int, problem: str) -> None:
            if asked is not None:
                self._unsaid = SavedNote(asked.id, iteration, problem, datetime.now().astimezone())
                self._say()

        try:
            can_save = [observer.when_asked_to_save(progress, answer) for observer in observers]
            if not any(can_save):
                answer(progress.iteration, "this training saves nothing (no --save)")
        except Refusal as error:
            answer(progress.iteration, str(error))

    def _say(self) -> None:
        if self._unsaid is not None:
            with contextlib.suppress(OSError):
                self._place.write(json_file_text(self._unsaid), SAVED_NOTE)
                self._unsaid = None
