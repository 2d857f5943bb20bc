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
from datetime import datetime
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from trainer.formats.attempt.attempt_records import (
    HARD_END_STATUS,
    LEAVING_NOTE,
    ExitReport,
    LeavingNote,
)
from trainer.formats.checkpoint.history import Progress
from trainer.formats.json_text import json_file_text
from trainer.formats.logs.guard_lines import Reason, leave_line
from trainer.loop.resuming import Place
from trainer.loop.save import AskedSaves
from trainer.recipe.options import Options

# The order is the collective's, and the one in which reasons win over each other.
_AGREED = (Reason.KILL_SWITCH, Reason.STOP_REQUEST, Reason.SIGNAL, Reason.EXIT_DURATION)


class LeavesEarly(Exception):
    """All ranks have agreed to leave before the first step; nothing is built that would have to be saved."""

    def __init__(self, reason: Reason, line: str) -> None:
        super().__init__(line)
        self.reason, self.line = reason, line


class Leaving:
    """Decides, before each iteration, whether all ranks leave. Creating one is collective: the earliest start
    counts.
    """

    def __init__(self, options: Options, device: torch.device, started_at: float) -> None:
        self._options, self._device = options, device
        self._looks = dist.get_rank() == 0

        def place(key: str) -> Place:
            return Place(Path(options[key]) if self._looks and options[key] else None)

        self._kill_switch, self._stop_request = place("kill_switch_path"), place("stop_request_path")
        self._exit_report, self.asked_saves = place("exit_report_path"), AskedSaves(place("save_request_path"))
        self._told_by_signal = False
        self.agreed_meanwhile: tuple[Reason, str] | None = None  # by `has_to_end`
        self._summed: tuple[float, ...] = ()  # votes, by the step before, until they are looked at
        earliest = torch.tensor([started_at], dtype=torch.float64, device=device)
        dist.all_reduce(earliest, op=dist.ReduceOp.MIN)
        self._started_at = float(earliest)

    def listen(self) -> None:
        """Save and leave on SIGTERM, however often it comes."""
        signal.signal(signal.SIGTERM, self._note_signal)

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
        interval, own = self._options.exit_interval, self._options.exit_after_iters
        samples = self._options.exit_samples
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
        """Return whether the exit duration has passed."""
        limit = self._options.exit_duration_in_mins
        return limit is not None and minutes > limit

    def _line(self, reason: Reason, minutes: float) -> str:
        details: dict[Reason, object] = {
            Reason.KILL_SWITCH: self._options.kill_switch_path,
            Reason.STOP_REQUEST: self._options.stop_request_path,
            Reason.SIGNAL: signal.SIGTERM.name,
            Reason.EXIT_DURATION: minutes,
        }
        return leave_line(reason, details[reason])

    def announce(self, reason: Reason, iteration: int) -> None:
        """Write a note, on the first rank, that all have agreed to leave and now save. Without a note they leave too.

        The user who triggered the kill switch waits for it, and a save may take long; it is no record.
        """
        note = LeavingNote(reason, iteration, datetime.now().astimezone())
        with contextlib.suppress(OSError):
            self._exit_report.write(json_file_text(note), LEAVING_NOTE)

    def report(self, reason: Reason, progress: Progress) -> None:
        """Write the exit report, on the first rank. Everything that had to be saved is saved by now."""
        report = ExitReport(reason, progress.iteration, progress.consumed_train_samples)
        self._exit_report.write(json_file_text(report))


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
