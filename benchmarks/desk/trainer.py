"""The simulated trainer: what it does while it has nodes, what it prints, and what is on record of its attempts."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from benchmarks.desk.clockwork import Clockwork, Life, Process
from benchmarks.desk.log import Log, moment
from benchmarks.desk.queue import USER, Queue, Task
from benchmarks.desk.shapes import DAY_S, EXIT_MARGIN_S, HOUR_S, MINUTE_S, Shape
from opsctl.run.attempts.ending import Ending
from opsctl.run.attempts.events import Attempt
from opsctl.run.attempts.failure_limit import failed_too_often
from opsctl.run.logs.lines import AttemptEnd, AttemptStart, write_attempt_end, write_attempt_start
from opsctl.run.state.chains import counted_since
from opsctl.slurm.states import State
from trainer.formats.attempt.attempt_records import Failure
from trainer.formats.logs.guard_lines import Reason, leave_line
from trainer.formats.logs.log_lines import (
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointSaving,
    Evaluation,
    Timers,
    perplexity,
    stamp,
    write_checkpoint_line,
    write_evaluation,
    write_timers,
)
from trainer.formats.logs.training_line import TrainingLine, write_training_line

CHECKPOINTS = Path("/lustre/tr-desk/checkpoints")
KILL_SWITCH = Path("/lustre/tr-desk/kill-switch")
REVISION = "0003-7fd1a2"
#: For ever, as far as a simulated world is concerned.
_NEVER = math.inf
_POLL_S = 60.0


@dataclass(frozen=True)
class Saved:
    """A checkpoint."""

    iteration: int
    samples: int
    at: float


@dataclass
class Faults:
    """The present faults of the training; each kind of incident sets its own and takes it back."""

    slower: dict[object, float] = field(default_factory=dict)  # factors on the time of an iteration
    loss: dict[object, Callable[[int], float]] = field(default_factory=dict)  # iteration -> nats more
    norm: dict[object, Callable[[float], float]] = field(default_factory=dict)  # time -> factor on the gradient norm
    hangs: set[str] = field(default_factory=set)  # "start", "iteration", "evaluation"
    hung_since: float | None = None
    skipped_share: float = 0.0
    nan_share: float = 0.0
    crash_within_s: float | None = None  # of every attempt
    saves_fail: bool = False


class Trainer:
    """One training through all its attempts."""

    def __init__(
        self,
        clock: Clockwork,
        shape: Shape,
        log: Log,
        queue: Queue,
        chance: random.Random,
        roughness: float,
    ) -> None:
        self.roughness = roughness
        self.clock, self.shape, self.log, self.queue, self.chance = clock, shape, log, queue, chance
        self.faults = Faults()
        self.kill_switch_at: float | None = None
        self.attempts: list[Attempt] = []
        self.saved: list[Saved] = []
        self.iteration, self.samples = 0, 0
        self.total_iterations = 0
        self.since_start = 0  # log lines since the last start
        self.normal_start_s = 0.0  # the longest so far
        self.weather = 1.0  # what others on the network cost
        self.settled = 0  # log lines altogether
        self.line_at = 0.0  # when the last of them was written
        self._process: Process | None = None
        self._data_drift = self._norm_drift = 0.0
        self._bump = 0.0
        self.died: Callable[[], object] = lambda: None  # called when a GPU has
        queue.started = self.begin
        clock.start(self._others_on_the_network())

    @property
    def is_training(self) -> bool:
        """Return whether iterations come."""
        return self.queue.task is not None and self.since_start > 0 and self.faults.hung_since is None

    def begin(self, task: Task) -> None:
        """A task has its nodes."""
        self.since_start = 0
        self._process = self.clock.start(self._life(task))
        days = self.chance.expovariate(1 / self.shape.days_between_gpu_deaths)
        self.clock.at(task.started_at + days * DAY_S, lambda: self.gpu_dies(task))
        self.clock.at(task.ends_at, lambda: self._limit(task))

    def gpu_dies(self, task: Task) -> None:
        """The attempt fails, some time after its last word; the next task goes on, elsewhere if a node was drained."""
        if self.queue.task is not task or not self.since_start:
            return
        self._stop()
        self.died()
        node = self.chance.choice(task.nodes)
        self.log.write(self.clock.now, "[default5]:RuntimeError: CUDA error: an illegal memory access was encountered")
        # "Job does not exit": until the rest has noticed, or a user looks.
        self.clock.at(self.clock.now + self.chance.uniform(20, 900), lambda: self.fail(task, node))
        if self.chance.random() < 0.5:
            self.clock.at(self.clock.now + self.chance.uniform(1, 5) * HOUR_S, lambda: self._drain(node))

    def fail(self, task: Task, node: str) -> None:
        """The task ends as failed."""
        if self.queue.task is task:
            self._stop()
            failure = Failure(rank=self.chance.randrange(8), node=node, exit_code=1, message="CUDA error")
            self._close(Ending.FAILED, 1, failure)
            self.queue.over()

    def _limit(self, task: Task) -> None:
        """Slurm ends what is still there at the time limit."""
        if self.queue.task is task:
            self._stop()
            if self.attempts[-1].is_open:
                self._close(Ending.TIME_LIMIT, 0)
            self.queue.over()

    def cancel(self) -> None:
        """A user cancels the running task, which saves nothing."""
        if self.queue.task is not None:
            self._stop()
            if self.attempts and self.attempts[-1].is_open:
                self._close(Ending.CANCELLED, 0)
            self.queue.over()

    def save_and_leave(self) -> None:
        """A user has asked the running task to stop."""
        task = self.queue.task
        if task is not None and self.is_training:
            self._stop()
            self._process = self.clock.start(self._leaving(task, Ending.STOP_REQUEST, "stop-request"))
        else:
            self.cancel()

    def roll_back(self, iterations: int) -> None:
        """A user repoints `latest` to before the trouble."""
        before = [one for one in self.saved if one.iteration <= self.iteration - iterations]
        self.saved = before or self.saved[:1]

    def _stop(self) -> None:
        if self._process is not None:
            self._process.stop()
        self.faults.hung_since = None
        self.since_start = 0

    def _drain(self, node: str) -> None:
        self.queue.out_of_service[node] = "GPU has fallen off the bus"
        back_s = self.chance.uniform(1, 3) * DAY_S
        self.clock.at(self.clock.now + back_s, lambda: self.queue.out_of_service.pop(node, None))

    def _life(self, task: Task) -> Life:
        yield self.clock.now + self.chance.uniform(20, 120)
        task.state = State.RUNNING
        if self.kill_switch_at is not None:
            self._say(leave_line(Reason.KILL_SWITCH, KILL_SWITCH, self._here))
            yield self.clock.now + 20
            self.queue.over()
            return
        self._open(task)
        if failed_too_often(self.attempts, counted_since(self.queue.chains, moment(task.array.submitted_at))):
            self.queue.cancel_pending()
            yield self.clock.now + 10
            self._close(Ending.BRAKE, 1)
            self.queue.over()
            return
        yield from self._starting()
        leave_at = task.ends_at - EXIT_MARGIN_S
        crash_at = _NEVER
        if self.faults.crash_within_s is not None:
            crash_at = self.clock.now + self.chance.uniform(0.1, 1.0) * self.faults.crash_within_s
        while self.clock.now < leave_at:
            yield from self._iteration()
            if self.clock.now >= crash_at:
                self.log.write(self.clock.now, "[default0]:torch.cuda.OutOfMemoryError: CUDA out of memory")
                yield self.clock.now + 60
                self.fail(task, self.chance.choice(task.nodes))
                return
            if self.kill_switch_at is not None:
                yield from self._leaving(task, Ending.KILL_SWITCH, str(KILL_SWITCH))
                return
        yield from self._leaving(task, Ending.EXIT_DURATION, str((task.ends_at - task.started_at) // 60))

    def _starting(self) -> Life:
        least, most = self.shape.start_s
        began = self.clock.now
        yield self.clock.now + self.chance.uniform(least, most)
        yield from self._hang("start")
        last = self.saved[-1] if self.saved else None
        self.iteration, self.samples = (last.iteration, last.samples) if last else (0, 0)
        self._say(write_checkpoint_line(CheckpointLoaded(self.iteration, str(CHECKPOINTS))))
        self._say(stamp("before the start of training step", self._here))
        self.normal_start_s = max(self.normal_start_s, min(self.clock.now - began, most))

    def _iteration(self) -> Life:
        """One log line's worth of them, with the evaluation and the save that are due after it."""
        shape, faults, chance = self.shape, self.faults, self.chance
        steps, batch = shape.log_interval, shape.ramp.batch_at(self.samples)
        factor = self.weather * (1 + self.roughness * chance.gauss(0, 0.004) / math.sqrt(steps))
        for slower in faults.slower.values():
            factor *= slower
        if chance.random() < self.roughness * steps / 800:  # one waits for the file system or a collective
            factor *= 1 + chance.uniform(0.3, 2.0) / steps
        if self.since_start == 0:
            factor *= 1 + chance.uniform(0.1, 0.6) / steps
        seconds = shape.seconds(batch) * factor
        yield self.clock.now + seconds * steps
        yield from self._hang("iteration")
        self.iteration += steps
        self.samples += batch * steps
        self._say(write_training_line(self._line(batch, seconds)))
        self.line_at = self.clock.now
        self.since_start += 1
        self.settled += 1
        if self.iteration % shape.eval_interval == 0:
            yield from self._evaluation()
        if self.iteration % shape.save_interval == 0:
            yield from self._save()

    def _evaluation(self) -> Life:
        began = self.clock.now
        yield began + self.shape.eval_s * self.chance.uniform(0.95, 1.2) * 0.6
        yield from self._hang("evaluation")
        yield self.clock.now + self.shape.eval_s * 0.4
        loss = self.shape.loss(self.samples) * 1.01
        for group in ("valid", "valid_en", "valid_fr"):
            self._say(write_evaluation(Evaluation(group, self.iteration, loss, perplexity(loss))))
        self._say(write_timers(Timers({"evaluation": (self.clock.now - began) * 1000})))

    def _save(self) -> Life:
        began = self.clock.now
        if self.saved and self.saved[-1].iteration == self.iteration:
            return
        self._say(write_checkpoint_line(CheckpointSaving(self.iteration, str(CHECKPOINTS))))
        slow = 4.0 if self.chance.random() < 0.02 else 1.0
        yield began + self.shape.save_s * self.chance.uniform(0.9, 1.3) * slow
        if self.faults.saves_fail:
            self._say("[default0]:OSError: [Errno 122] Disk quota exceeded")
            return
        self.saved.append(Saved(self.iteration, self.samples, self.clock.now))
        self._say(write_checkpoint_line(CheckpointSaved(self.iteration, str(CHECKPOINTS))))
        self._say(write_timers(Timers({"save-checkpoint": (self.clock.now - began) * 1000})))

    def _leaving(self, task: Task, ending: Ending, detail: str) -> Life:
        self._say(leave_line(Reason(ending.value), detail, self._here))
        yield from self._save()
        yield self.clock.now + 30
        self._close(ending, 0)
        self.since_start = 0
        if self.queue.task is task:
            self.queue.over()

    def _hang(self, where: str) -> Life:
        if where in self.faults.hangs:
            self.faults.hung_since = self.clock.now
        while where in self.faults.hangs:
            yield self.clock.now + _POLL_S
        self.faults.hung_since = None

    def _line(self, batch: int, seconds: float) -> TrainingLine:
        shape, chance, faults = self.shape, self.chance, self.faults
        steps = shape.log_interval
        skipped = nan = 0
        for _ in range(steps):
            skipped += chance.random() < max(faults.skipped_share, 0.001 if shape.is_fp16 else 0.0)
            nan += chance.random() < faults.nan_share
        loss = self._loss(batch) if nan < steps else None
        return TrainingLine(
            iteration=self.iteration,
            total_iterations=self.total_iterations,
            consumed_samples=self.samples,
            consumed_tokens=self.samples * 2048,
            seconds_per_iteration=seconds,
            learning_rate=shape.learning_rate.at(self.samples),
            global_batch_size=batch,
            loss=loss,
            loss_scale=131072.0 if shape.is_fp16 else None,
            grad_norm=self._norm(batch) if nan < steps else math.nan,
            skipped_iterations=skipped,
            nan_iterations=nan,
            samples_per_second=batch / seconds,
            tflops=shape.tflops(batch, seconds),
        )

    def _loss(self, batch: int) -> float:
        """The curve, noise of a batch, what the data's mixture does over hundreds of iterations, and small bumps."""
        shape, chance = self.shape, self.chance
        noise = self.roughness * shape.loss_noise * math.sqrt(shape.ramp.global_batch_size / batch / shape.log_interval)
        self._data_drift = 0.98 * self._data_drift + chance.gauss(0, 0.0006 * self.roughness)
        if chance.random() < shape.log_interval / 4000:
            self._bump = self.roughness * chance.uniform(0.02, 0.06)
        self._bump *= 0.85**shape.log_interval
        factor = 1 + self._data_drift + self._bump + chance.gauss(0, noise)
        return shape.loss(self.samples) * factor + sum(more(self.iteration) for more in self.faults.loss.values())

    def _norm(self, batch: int) -> float:
        """Large at the beginning, then even, with a single large one now and then."""
        chance = self.chance
        self._norm_drift = 0.99 * self._norm_drift + chance.gauss(0, 0.012 * self.roughness)
        usual = (0.14 + 1.0 * math.exp(-self.samples / 1.5e6)) * math.exp(self._norm_drift)
        if chance.random() < self.roughness / 1500:
            usual *= chance.uniform(2, 5)
        for factor in self.faults.norm.values():
            usual *= factor(self.clock.now)
        return usual * math.exp(chance.gauss(0, 0.12 * self.roughness))

    def _open(self, task: Task) -> None:
        last = self.saved[-1].iteration if self.saved else None
        attempt = Attempt(
            id=f"attempt-{len(self.attempts) + 1}",
            number=len(self.attempts) + 1,
            job_id=task.job_id,
            array_job_id=task.array.array_id,
            array_task=str(task.number),
            chain_submitted_at=moment(task.array.submitted_at),
            revision=REVISION,
            user=USER,
            nodes=task.nodes,
            opened_at=self._here,
            iteration_at_start=last,
        )
        self.attempts.append(attempt)
        start = AttemptStart(
            at=self._here,
            attempt=attempt.number,
            job=task.display_id,
            job_id=task.job_id,
            requeues=0,
            revision=REVISION,
            iteration=last,
            nodes=task.nodes,
        )
        self._say(write_attempt_start(start))

    def _close(self, ending: Ending, exit_code: int, failure: Failure | None = None) -> None:
        last = self.saved[-1].iteration if self.saved else None
        closed = msgspec.structs.replace(
            self.attempts[-1],
            closed_at=self._here,
            closed_by="job",
            reason=str(ending),
            exit_code=exit_code,
            iteration_at_end=self.iteration,
            checkpoint_at_end=last,
            first_failure=failure,
        )
        self.attempts[-1] = closed
        end = AttemptEnd(at=self._here, attempt=closed.number, reason=str(ending), exit_code=exit_code, checkpoint=last)
        self._say(write_attempt_end(end))

    def _others_on_the_network(self) -> Life:
        """A fabric that is shared costs a percent or three for hours; most of the time next to nothing."""
        while True:
            busy = self.chance.random() < 0.2
            cost = self.chance.uniform(0.01, 0.03) if busy else self.chance.uniform(-0.002, 0.003)
            self.weather = 1 + self.roughness * cost
            yield self.clock.now + self.chance.expovariate(1 / (6 * HOUR_S)) + 10 * MINUTE_S

    @property
    def _here(self) -> datetime:
        return moment(self.clock.now)

    def _say(self, text: str) -> None:
        self.log.write(self.clock.now, text)
