"""The watch over a step that prints nothing: where its ranks are, asked unasked, and its end where nothing moves.

Every rank's stacks are taken when nothing was logged for longer than it takes here, and again while that goes on.
Where for twice as long nothing was logged, and two looks show every rank at the same place, and as far as before in
every process group, the training hangs: its step is to be ended, so that the next task goes on. What cannot be looked
at is not ended, nor a training of which one rank cannot. The looks have threads of their own: a Slurm that does not
answer keeps nothing waiting.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.diagnosis.hangs import summary
from opsctl.diagnosis.hangs.grouping import recorded
from opsctl.jobs.runner.stacks import Taken, stacks_into
from opsctl.jobs.runner.task import Task
from opsctl.jobs.runner.watch_thread import Watch, in_background
from opsctl.run.attempts.verdict import StackGroup, Verdict
from opsctl.run.config.program import Program
from opsctl.run.logs import titan_lines
from opsctl.run.logs.line_text import Lines
from opsctl.run.logs.lines import is_of_an_iteration
from opsctl.run.logs.measurements import SILENT_LEAST_S, longest_silence_s, measured, recent
from opsctl.slurm.durations import format_duration, parse_duration_s
from trainer.formats.logs import log_lines, training_line
from trainer.recipe.options import Options

#: In lines that a training prints while it goes on.
_LIFE = (*training_line.MARKS, *log_lines.MARKS, titan_lines.MARK)
#: How often the limit is asked for while nothing comes, seconds.
_ASK_S = 5.0
#: Ranks of another program may be unreadable. Their silence has to last so many limits before it ends the step.
_UNSEEN = 4


@dataclass(frozen=True)
class Silence:
    """The time that a step may log nothing before it counts as hung."""

    limit_s: float  # nothing logged for so long is worth a look
    may_end: bool  # whether it is ended when it has lasted twice as long
    unseen_s: float | None = None  # without any output for so long, it is ended though its ranks cannot be seen


def is_hung(silent_s: float, limit: Silence, before: Taken | None, newest: Taken | None, quiet_s: float = 0.0) -> bool:
    """Return whether a step that was silent for so long is to be ended, by the last two looks at its ranks. Pure.

    quiet_s: the time without any output.
    """
    if not limit.may_end or silent_s < 2 * limit.limit_s:
        return False
    if newest is None or not newest.shows_all:
        return limit.unseen_s is not None and quiet_s >= limit.unseen_s
    if before is None or not before.shows_all:
        return False
    return not summary.moved(before.groups, newest.groups) and set(before.progress) == set(newest.progress)


def next_look_s(silent_s: float, limit: Silence) -> float:
    """After how long a silence the next look is due, when one was taken after `silent_s` seconds of it. Pure."""
    return silent_s + max(limit.limit_s / 2, 1.0)


class HangWatch(Watch):
    """Watches one step's output. `heard` and `check` are called by who copies it, and never wait."""

    def __init__(
        self,
        limit: Callable[[bool, bool], Silence | None],
        take: Callable[[], tuple[Taken, str]],
        clock: Callable[[], float] = time.monotonic,
        ask_s: float = _ASK_S,
        all_counts: bool = False,
    ) -> None:
        """Watch a step. `limit`: returns what the step may do now, given whether it has logged nothing yet, and whether
        more of the log is worth reading, as before the first check of a silence. None if unknown.

        take: takes the stacks of its ranks and returns them with a sentence about them; may take a minute. Raises
        OpsctlError. all_counts: any output is a sign of life, of a program without lines of progress.
        """
        super().__init__()
        self._limit, self._take, self._clock, self._ask_s = limit, take, clock, ask_s
        self._signs = Lines(_LIFE)
        self._is_starting = True
        self._heard_at = self._asked_at = self._output_at = clock()
        self._all_counts = all_counts
        self._known: Silence | None = None
        self._knows_more = False
        self._looks: list[Taken | None] = []
        self._due: float | None = None  # silence, in seconds, after which the next look is due
        self._thread: threading.Thread | None = None
        self._answers: deque[tuple[Taken | None, str]] = deque()
        self.sentence = ""  # what the last look has shown
        self.ends = False  # the training hangs: its step is to be ended

    def heard(self, data: bytes) -> None:
        """Process new output of the step. A line counts when it has ended."""
        # A progress bar is one line without end, longer than what is kept of one.
        self._output_at = self._clock()
        signs = list(self._signs.feed(data.replace(b"\r", b"\n")))
        if not signs and not self._all_counts:
            return
        if self._looks and not self.ends:
            silent = format_duration(self._clock() - self._heard_at)
            self.report(f"{summary.GOES_ON}{silent} without output")
        self._heard_at = self._clock()
        if any(map(is_of_an_iteration, signs)):  # the others are also printed on the way there
            self._is_starting = False
        self._known, self._knows_more, self._looks, self._due = None, False, [], None

    def check(self) -> None:
        """Take stacks when they are due, and judge those that were taken."""
        silent_s = self._clock() - self._heard_at
        while self._answers:
            self._judge(*self._answers.popleft(), silent_s)
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
        if self.ends or self._thread is not None or self._clock() - self._asked_at < self._ask_s:
            return
        self._asked_at = self._clock()
        if self._known is None:
            self._know(more=False)
        if not self._knows_more and self._is_due(silent_s):
            self._know(more=True)
        if self._is_due(silent_s):
            self._start_look()

    @property
    def is_training(self) -> bool:
        """Return whether an iteration was logged."""
        return not self._is_starting

    @property
    def stacks(self) -> tuple[StackGroup, ...]:
        """The stacks of the ranks that log nothing; empty while the training continues."""
        newest = self._newest()
        return recorded(newest.groups) if newest is not None else ()

    @property
    def verdict(self) -> Verdict | None:
        """The cause of a hang for which the step was ended."""
        newest = self._newest()
        if not self.ends or newest is None:
            return None
        return summary.verdict_of(newest.groups, newest.ranks, now(), newest.flight)

    def _newest(self) -> Taken | None:
        return next((one for one in reversed(self._looks) if one is not None), None)

    def _know(self, more: bool) -> None:
        self._known, self._knows_more = self._limit(self._is_starting, more), more
        self._due = self._known.limit_s if self._known else None

    def _is_due(self, silent_s: float) -> bool:
        return self._due is not None and silent_s >= self._due

    def _start_look(self) -> None:
        self._thread = in_background(self._run, "stacks")  # without one the next call tries again

    def _judge(self, taken: Taken | None, words: str, silent_s: float) -> None:
        if self._due is None or self._known is None:
            return  # it has gone on meanwhile
        before = self._looks[-1] if self._looks else None
        self._looks.append(taken)
        self._due = next_look_s(silent_s, self._known)
        silent = format_duration(silent_s)
        if is_hung(silent_s, self._known, before, taken, self._clock() - self._output_at):
            self.ends = True
            self.report(f"opsctl: the training hangs, nothing has moved for {silent}: {words}")
        elif len(self._looks) == 1:
            limit = format_duration(self._known.limit_s)
            self.report(f"{summary.SILENT}{silent}, longer than {limit}: {words}")
        if taken is not None:
            self.sentence = taken.sentence

    def _run(self) -> None:
        try:
            self._answers.append(self._take())
        except OpsctlError as error:
            self._answers.append((None, f"where its ranks are cannot be seen: {error}"))


def watch_over(task: Task, program: Program | None) -> HangWatch:
    """Return the watch of the step of `task`, which starts `program`, our trainer if it is None."""
    is_mute = program is not None and not program.reports_progress

    def take() -> tuple[Taken, str]:
        return stacks_into(task.paths.attempt_folder(task.allocation.job_id) / summary.SILENT_STACKS, task)

    def limit(is_starting: bool, more: bool) -> Silence | None:
        found = _silence(task, is_starting and not is_mute, more)
        if found is None or program is None:
            return found
        return replace(found, unseen_s=_UNSEEN * found.limit_s)

    return HangWatch(limit, take, all_counts=is_mute)


def _silence(task: Task, is_starting: bool, more: bool) -> Silence | None:
    """Return how long the step may be silent, by its run file and log; None if neither has anything of it.

    more: read enough of the log to include the longest evaluation and save, which the last fifty lines may lack.
    """
    seen = measured(task.paths) if more else recent(task.paths)
    told_s = _told_s(task)
    if seen.seconds_per_iteration is None and (told_s is None or is_starting):
        return None
    pauses_s = (seen.longest_evaluation_seconds or 0.0) + (seen.longest_save_seconds or 0.0)
    interval = task.options.log_interval if isinstance(task.options, Options) else 1
    may_end = not is_starting and _said(task, "end_hung") is not False
    limit_s = longest_silence_s(seen.seconds_per_iteration or 0.0, told_s, pauses_s, is_starting, interval)
    return Silence(limit_s, may_end)


def patience_s(task: Task) -> float:
    """Return how long a trainer that was asked to leave may be silent before it counts as hung."""
    found = _silence(task, is_starting=False, more=True)
    return found.limit_s if found is not None else _told_s(task) or SILENT_LEAST_S


def _told_s(task: Task) -> float | None:
    """Return the longest silence that the run file allows, seconds."""
    most = _said(task, "silent_most")
    with contextlib.suppress(ValueError):
        return float(parse_duration_s(most)) if isinstance(most, str) else None
    return None


def _said(task: Task, key: str) -> object:
    """Return a key of the published `[watch]`."""
    try:
        return task.revision.file.watch.get(key)
    except OpsctlError:
        return None
