"""The run's arrays in Slurm's queue, and what squeue would say of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import simpy

from benchmarks.desk.log import moment
from benchmarks.simulate.setting import Setting
from opsctl.jobs.control.live_jobs import LiveJobs
from opsctl.jobs.control.refill import Upkeep, Word, of_the_queue, stopped_by_failures
from opsctl.run.attempts.events import Attempt
from opsctl.run.state.chains import SUBMIT, Chain
from opsctl.slurm.states import State
from opsctl.slurm.types import Job

#: Of attempts a decision about the queue looks at the newest: the brake's row, and what left the queue without success.
NEWEST = 50


@dataclass
class Array:
    """A chain: tasks that run one after the other."""

    chain: Chain
    next_task: int = 1


class Queue:
    """The submitted arrays that have not started."""

    def __init__(self, env: simpy.Environment, setting: Setting) -> None:
        self.env, self.setting = env, setting
        self.waiting: list[Array] = []
        self.chains: list[Chain] = []
        self.running: tuple[int, Array, int] | None = None  # job id, its array, its task
        self.started_at = 0.0
        self.came = env.event()
        self._last_id = 1000

    def submit(self, how: str = SUBMIT) -> None:
        """One more array behind the others."""
        self._last_id += 1
        tasks = f"1-{self.setting.tasks}%1"
        chain = Chain(
            chain=self._last_id, submitted_at=moment(self.env.now), user="ada", array=tasks, how=how, after=()
        )
        self.chains.append(chain)
        self.waiting.append(Array(chain))
        self.came.succeed()
        self.came = self.env.event()

    def start(self) -> tuple[int, Array, int]:
        """The next task has its nodes."""
        array = self.waiting[0]
        self._last_id += 1
        self.running, self.started_at = (self._last_id, array, array.next_task), self.env.now
        array.next_task += 1
        if array.next_task > self.setting.tasks:
            self.waiting.pop(0)
        return self.running

    def over(self) -> None:
        """The running task has ended."""
        self.running = None

    def cancel_pending(self) -> None:
        """Remove what has not started from the queue."""
        self.waiting.clear()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing of the run is queued or runs."""
        return self.running is None and not self.waiting

    def jobs(self) -> list[Job]:
        """The run's own as squeue lists them."""
        found = []
        if self.running is not None:
            job_id, array, task = self.running
            found.append(self._job(array, job_id, str(task), State.RUNNING, self.env.now - self.started_at))
        for array in self.waiting:
            tasks = f"{array.next_task}-{self.setting.tasks}%1"
            found.append(self._job(array, array.chain.chain, tasks, State.PENDING, 0.0))
        return found

    def missing(self, attempts: Sequence[Attempt], heeds_brake: bool) -> int | None:
        """Return how many arrays `opsctl refill` submits now; None where it says that a user has to look."""
        if heeds_brake and stopped_by_failures(self.chains, attempts[-NEWEST:]) is not None:
            return None
        upkeep = Upkeep(self.setting.keep_queued, self.setting.tasks, self.setting.trains_s, None)
        jobs = self.jobs()
        decision = of_the_queue(self.chains[-NEWEST:], attempts[-NEWEST:], LiveJobs(jobs, jobs), upkeep)
        return None if decision.word is Word.STUCK else decision.arrays

    def _job(self, array: Array, job_id: int, task: str, state: State, elapsed_s: float) -> Job:
        return Job(
            job_id=job_id,
            array_job_id=array.chain.chain,
            array_task=task,
            name="tr",
            user="ada",
            partition="gpu",
            state=str(state),
            reason="None",
            nodes="n0" if state is State.RUNNING else "",
            node_count=self.setting.nodes,
            elapsed_s=math.floor(elapsed_s),
            time_limit_s=round(self.setting.time_limit_s),
            submitted_at=array.chain.submitted_at,
            started_at=None,
            ends_at=None,
            dependency="",
            comment="",
            work_dir="/run",
        )
