"""Why and when a training leaves, or saves because somebody asks. One rank looks at the files, and all agree before
they do it: in the collective that each step has, else in one of their own.
"""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from trainer.formats.attempt.attempt_records import LATER_EXIT, LEAVING_NOTE, ExitReport, LaterExit, LeavingNote
from trainer.formats.checkpoint.history import Progress
from trainer.formats.json_text import json_file_text
from trainer.formats.logs.guard_lines import Reason, leave_line
from trainer.formats.tolerant import decode
from trainer.loop.asked_saves import AskedSaves
from trainer.loop.lookout import Lookout
from trainer.loop.place import Place

# The order is the collective's, and the one in which reasons win over each other.
_AGREED = (Reason.KILL_SWITCH, Reason.STOP_REQUEST, Reason.SIGNAL, Reason.EXIT_DURATION)


@dataclass(frozen=True)
class LeavingSettings:
    """Where and when to look."""

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
    """Decides, before each iteration, whether all ranks leave. To make one is collective: whose start was earliest?"""

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
        """What this rank sees: for each reason whether it does, whether a save is asked for, on the first its time."""
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
        """After what took long since the last step, on every rank: the next `reason` asks all anew.

        Unless they have agreed to leave, which stands whatever becomes of the file that it was.
        """
        if not any(self._summed[: len(_AGREED)]):
            self._summed = ()

    def _agreed(self) -> tuple[Reason, str] | None:
        """A reason that some rank sees. Collective, unless a step has asked them all."""
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
        """The reasons that every rank counts for itself."""
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
        """Whether to break off what may take long between two iterations, an evaluation. Collective.

        Once all have agreed on it the next `reason` says why, whatever becomes of the file that it was.
        """
        self.agreed_meanwhile = self.reason(0, steps_done=0)
        return self.agreed_meanwhile is not None

    def look_while_building(self) -> None:
        """Between two parts of the start. Collective. Raises LeavesEarly."""
        found = self.reason(0, steps_done=0)
        if found is not None:
            raise LeavesEarly(*found)

    def _duration_is_over(self, minutes: float) -> bool:
        """Whether the exit duration has passed, and with it what the job has written down since of a later one.

        Without such a word, and with one that cannot be read, the duration that it was started with counts. The first
        rank looks, whose node the job is on: both go by one clock.
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
        """Leave word, on the first rank, that all have agreed to leave and now save. Where it cannot be, they just do.

        Whoever triggered the kill switch waits for it, and a save may take long; it is no record.
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
