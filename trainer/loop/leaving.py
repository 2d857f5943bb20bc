"""Decide why and when a training leaves, or saves on request. One rank checks the files, and all agree before they act:
in the collective of each step, else in a separate one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from trainer.core.console import say
from trainer.formats.attempt.attempt_records import (
    HARD_END_STATUS,
    LATER_EXIT,
    LEAVING_NOTE,
    ExitReport,
    LaterExit,
    LeavingNote,
)
from trainer.formats.checkpoint.history import Progress
from trainer.formats.json_text import json_file_text
from trainer.formats.logs.guard_lines import Reason, leave_line
from trainer.formats.tolerant import decode
from trainer.loop.resuming import Place
from trainer.loop.save import AskedSaves

#: Seconds between two looks.
LOOK_EVERY_S = 1.0
# So many looks pass before it says so: a training that is between two short steps leaves without more words.
_LOOKS_UNTIL_SAID = 3
_NAMES = {Reason.KILL_SWITCH: "kill switch", Reason.STOP_REQUEST: "stop request"}


class Lookout:
    """Looks, in a thread of its own, whether the kill switch or the stop request is there.

    To leave all ranks have to agree, between two things that they do together. So all that this does is to say that
    they are going to. It ends with the process, or when it is closed.
    """

    def __init__(self, kill_switch: Path | None, stop_request: Path | None, every_s: float = LOOK_EVERY_S) -> None:
        paths = {Reason.KILL_SWITCH: kill_switch, Reason.STOP_REQUEST: stop_request}
        self._paths = {reason: path for reason, path in paths.items() if path is not None}
        # Its own places: what they hold open is not shared between threads.
        self._places = {reason: Place(path) for reason, path in self._paths.items()}
        self._looks: dict[Reason, int] = dict.fromkeys(self._places, 0)
        self._every_s = every_s
        self._is_over = threading.Event()

    def start(self) -> None:
        """Begin to look, where there is anything to look at."""
        if self._places:
            threading.Thread(target=self._watch, name="lookout", daemon=True).start()

    def close(self) -> None:
        """Look no more: the training is leaving."""
        self._is_over.set()

    def _watch(self) -> None:
        while not self._is_over.wait(self._every_s):
            for reason, place in self._places.items():
                self._looks[reason] = self._looks[reason] + 1 if place.is_taken() else 0
                if self._looks[reason] == _LOOKS_UNTIL_SAID:
                    say(f"{_NAMES[reason]} at {self._paths[reason]} is seen: leaving when what is under way is done")


# The order is the collective's, and the one in which reasons win over each other.
_AGREED = (Reason.KILL_SWITCH, Reason.STOP_REQUEST, Reason.SIGNAL, Reason.EXIT_DURATION)


@dataclass(frozen=True)
class LeavingSettings:
    """The places and times of the checks."""

    kill_switch_path: Path | None
    stop_request_path: Path | None
    exit_report_path: Path | None
    exit_duration_minutes: float | None
    exit_interval: int | None
    save_request_path: Path | None = None
    exit_after_iterations: int | None = None  # of this start
    exit_samples: int | None = None  # consumed


class LeavesEarly(Exception):
    """All ranks have agreed to leave before the first step; nothing is built that would have to be saved."""

    def __init__(self, reason: Reason, line: str) -> None:
        super().__init__(line)
        self.reason, self.line = reason, line


class Leaving:
    """Decides, before each iteration, whether all ranks leave. Creating one is collective: the earliest start
    counts.
    """

    def __init__(self, settings: LeavingSettings, device: torch.device, started_at: float) -> None:
        self._settings = settings
        self._device = device
        self._looks = dist.get_rank() == 0
        self._kill_switch = Place(settings.kill_switch_path if self._looks else None)
        self._stop_request = Place(settings.stop_request_path if self._looks else None)
        self._exit_report = Place(settings.exit_report_path if self._looks else None)
        self.asked_saves = AskedSaves(Place(settings.save_request_path if self._looks else None))
        self._told_by_signal = False
        self.agreed_meanwhile: tuple[Reason, str] | None = None  # by `has_to_end`
        self._summed: tuple[float, ...] = ()  # votes, by the step before, until they are looked at
        self._lookout = Lookout(settings.kill_switch_path, settings.stop_request_path) if self._looks else None
        earliest = torch.tensor([started_at], dtype=torch.float64, device=device)
        dist.all_reduce(earliest, op=dist.ReduceOp.MIN)
        self._started_at = float(earliest)

    def listen(self) -> None:
        """Take SIGTERM as a wish to save and leave, however often it comes; say it when a trigger has to wait."""
        signal.signal(signal.SIGTERM, self._note_signal)
        if self._lookout is not None:
            self._lookout.start()

    def _note_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._told_by_signal = True

    def minutes(self) -> float:
        """Since the earliest rank started."""
        return (time.time() - self._started_at) / 60

    def reason(self, iteration: int, steps_done: int, consumed_samples: int = 0) -> tuple[Reason, str] | None:
        """Why to leave now, and the line that says so; None to go on.

        By the votes that the last step brought along; one small all-reduce, then collective, where none did.
        `steps_done` are this process's own, so that a training that resumes at a multiple of the exit interval goes on.
        The same votes agree whether `asked_saves` are due.
        """
        if self.agreed_meanwhile is not None:
            return self.agreed_meanwhile
        return self._agreed() or self._counted(iteration, steps_done, consumed_samples)

    def votes(self) -> tuple[float, ...]:
        """Return this rank's votes: for each reason whether it holds, whether a save is requested, and on the first its
        time.
        """
        minutes = self.minutes() if self._looks else 0.0  # the first rank's, so that every rank would print the same
        seen = (
            self._kill_switch.is_taken(),
            self._stop_request.is_taken(),
            self._told_by_signal,
            self._looks and self._duration_is_over(minutes),
        )
        return (*map(float, seen), float(self.asked_saves.is_asked()), minutes)

    def counted(self, votes: tuple[float, ...]) -> None:
        """Take what a step has summed up over all ranks; the next `reason` goes by it."""
        self._summed = votes

    def look_again(self) -> None:
        """Check again at the next `reason`, after a long pause since the last step; call it on every rank.

        Once the ranks have agreed to leave, this stays, even if the file is gone.
        """
        if not any(self._summed[: len(_AGREED)]):
            self._summed = ()

    def _agreed(self) -> tuple[Reason, str] | None:
        """Return a reason that some rank sees. Collective, unless a step has collected the votes."""
        summed, self._summed = self._summed or self._summed_now(), ()
        *agreed, save, minutes = summed
        self.asked_saves.are_due = bool(save)
        for reason, is_seen in zip(_AGREED, agreed, strict=True):
            if is_seen:
                return (Reason.STOP_REQUEST if reason == Reason.SIGNAL else reason), self._line(reason, minutes)
        return None

    def _summed_now(self) -> tuple[float, ...]:
        votes = torch.tensor(self.votes(), dtype=torch.float64, device=self._device)
        dist.all_reduce(votes)
        return tuple(votes.tolist())

    def _counted(self, iteration: int, steps_done: int, consumed_samples: int) -> tuple[Reason, str] | None:
        """Return a reason that every rank computes for itself."""
        interval, own, samples = (
            self._settings.exit_interval,
            self._settings.exit_after_iterations,
            self._settings.exit_samples,
        )
        if samples and consumed_samples >= samples:
            return Reason.EXIT_SAMPLES, leave_line(Reason.EXIT_SAMPLES, consumed_samples)
        if steps_done and ((interval and iteration % interval == 0) or (own and steps_done >= own)):
            return Reason.EXIT_INTERVAL, leave_line(Reason.EXIT_INTERVAL, iteration)
        return None

    def has_to_end(self) -> bool:
        """Return whether to interrupt long work between two iterations, an evaluation. Collective.

        Once all have agreed, the next `reason` returns the reason, even if the file is gone.
        """
        self.agreed_meanwhile = self.reason(0, steps_done=0)
        return self.agreed_meanwhile is not None

    def look_while_building(self) -> None:
        """Between two parts of the start. Collective. Raises LeavesEarly."""
        found = self.reason(0, steps_done=0)
        if found is not None:
            raise LeavesEarly(*found)

    def _duration_is_over(self, minutes: float) -> bool:
        """Return whether the exit duration has passed, including a later one that the job has recorded since.

        Without a record, or with an unreadable one, the duration of the start counts. The first rank checks, on the
        job's own node: both use one clock.
        """
        limit = self._settings.exit_duration_minutes
        if limit is None or minutes <= limit:
            return False
        later: LaterExit | None = None
        with contextlib.suppress(OSError):
            later = decode(self._exit_report.read(LATER_EXIT), LaterExit)
        return later is None or datetime.now().astimezone() >= later.at

    def _line(self, reason: Reason, minutes: float) -> str:
        details: dict[Reason, object] = {
            Reason.KILL_SWITCH: self._settings.kill_switch_path,
            Reason.STOP_REQUEST: self._settings.stop_request_path,
            Reason.SIGNAL: signal.SIGTERM.name,
            Reason.EXIT_DURATION: minutes,
        }
        return leave_line(reason, details[reason])

    def announce(self, reason: Reason, iteration: int) -> None:
        """Write a note, on the first rank, that all have agreed to leave and now save. Without a note they leave too.

        The user who triggered the kill switch waits for it, and a save may take long; it is no record.
        """
        self._is_leaving()
        note = LeavingNote(reason, iteration, datetime.now().astimezone())
        with contextlib.suppress(OSError):
            self._exit_report.write(json_file_text(note), LEAVING_NOTE)

    def report(self, reason: Reason, progress: Progress) -> None:
        """Write the exit report, on the first rank. Everything that had to be saved is saved by now."""
        self._is_leaving()
        report = ExitReport(reason, progress.iteration, progress.consumed_train_samples)
        self._exit_report.write(json_file_text(report))

    def _is_leaving(self) -> None:
        if self._lookout is not None:
            self._lookout.close()


#: A rank that has saved, or has nothing to save, and is still there after this many seconds ends without asking.
HARD_END_AFTER_S = 60.0

# The last notes go to files, perhaps on a dead file system. This is the longest wait for them.
_LAST_WORDS_S = 5.0


class HardEnd:
    """Ends this process without asking when something that was begun is not over in time.

    One thing at a time is watched: beginning another calls the one before off. `leave_word` is handed the sentence that
    says why, once it is printed: what else has to know of it.
    """

    def __init__(self, leave_word: Callable[[str], None] = lambda _sentence: None) -> None:
        self._leave_word = leave_word
        self._timer: threading.Timer | None = None

    def start(self, after_s: float = HARD_END_AFTER_S, sentence: str | None = None) -> None:
        """Begin the countdown, in a thread that does not itself keep the process alive."""
        self.cancel()
        why = sentence or f"this rank had decided to leave and did not within {after_s:g} s"
        self._timer = threading.Timer(after_s, self._end, args=(why,))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Call it off; no error if it was never started."""
        if self._timer is not None:
            self._timer.cancel()

    @contextlib.contextmanager
    def unless_done_in(self, after_s: float, sentence: str) -> Iterator[None]:
        """Watch over what is done inside, for `after_s` seconds."""
        self.start(after_s, sentence)
        try:
            yield
        finally:
            self.cancel()

    def _end(self, sentence: str) -> None:
        words = threading.Thread(target=self._say, args=(sentence,), daemon=True)
        words.start()
        words.join(_LAST_WORDS_S)
        os._exit(HARD_END_STATUS)

    def _say(self, sentence: str) -> None:
        os.write(2, f"{sentence}: ending it\n".encode())
        self._leave_word(sentence)
