"""The simulated cluster: arrays in a queue, one task at a time, its nodes, and the partition that gives them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.desk.clockwork import Clockwork, Life
from benchmarks.desk.log import moment
from benchmarks.desk.shapes import HOUR_S, MINUTE_S, Shape
from opsctl.run.state.chains import SUBMIT, Chain
from opsctl.slurm.nodes import Node
from opsctl.slurm.states import Reason, State
from opsctl.slurm.types import Job

USER, PARTITION, NAME = "ada", "gpu_p5", "tr-desk"
#: How often Slurm's scheduler looks.
_LOOK_S = 120.0
#: What Slurm says of a job that would run into a maintenance.
_BEFORE_MAINTENANCE = "ReqNodeNotAvail, Reserved for maintenance"


@dataclass
class Array:
    """A chain: tasks that run one after the other."""

    array_id: int
    submitted_at: float
    tasks: int
    next_task: int = 1
    is_held: bool = False
    stuck: str = ""  # Slurm's reason, of one that cannot start as it is

    @property
    def is_over(self) -> bool:
        """Return whether all its tasks have started."""
        return self.next_task > self.tasks

    @property
    def rest(self) -> str:
        """Return what is pending of it, as squeue names it."""
        first = str(self.next_task)
        return first if self.next_task == self.tasks else f"{first}-{self.tasks}%1"


@dataclass
class Task:
    """The task that has its nodes."""

    job_id: int
    array: Array
    number: int
    started_at: float
    ends_at: float
    nodes: tuple[str, ...]
    state: str = State.CONFIGURING

    @property
    def display_id(self) -> str:
        """As squeue shows it."""
        return f"{self.array.array_id}_{self.number}"


@dataclass
class Maintenance:
    """The partition is closed for so long."""

    starts_at: float
    ends_at: float


class Queue:
    """The queue of one run's jobs in Slurm. started: called with each task that gets its nodes."""

    def __init__(
        self,
        clock: Clockwork,
        shape: Shape,
        chance: random.Random,
        started: Callable[[Task], None] = lambda _task: None,
    ) -> None:
        self.clock, self.shape, self.chance, self.started = clock, shape, chance, started
        self.arrays: list[Array] = []
        self.chains: list[Chain] = []
        self.task: Task | None = None
        self.wait_s: float | None = None  # of the next task; None: not drawn yet
        self.waited_s = 0.0
        self.waits_s: list[float] = []  # of all that started, as records show them
        self._free_since = 0.0
        self.maintenance: Maintenance | None = None
        self.out_of_service: dict[str, str] = {}  # node -> reason
        self.names = tuple(f"jean{number:03d}" for number in range(1, shape.partition_nodes + 1))
        self._last_id = 1_400_000 + chance.randrange(100_000)
        clock.start(self._serve())

    def submit(self, how: str = SUBMIT) -> Array:
        """One more array behind the others."""
        self._last_id += self.chance.randint(1, 900)
        after = tuple(str(array.array_id) for array in self.arrays[-1:])
        array = Array(self._last_id, self.clock.now, self.shape.tasks)
        self.arrays.append(array)
        at, tasks = moment(self.clock.now), f"1-{array.tasks}%1"
        self.chains.append(Chain(chain=array.array_id, submitted_at=at, user=USER, array=tasks, after=after, how=how))
        return array

    def cancel_pending(self) -> None:
        """Everything that has not started leaves the queue."""
        live = self.task.array if self.task else None
        for array in self.arrays:
            array.next_task = array.tasks + 1
        self.arrays = [array for array in self.arrays if array is live]

    def over(self) -> None:
        """The running task has ended."""
        self.task, self._free_since = None, self.clock.now
        self.arrays = [array for array in self.arrays if not array.is_over]
        self.wait_s, self.waited_s = None, 0.0

    @property
    def waiting(self) -> list[Array]:
        """Those that have tasks to come, in their order."""
        return [array for array in self.arrays if not array.is_over]

    def jobs(self) -> tuple[Job, ...]:
        """The run's own as squeue would list them."""
        found = [self._running(self.task)] if self.task else []
        head = self._head()
        for array in self.waiting:
            if self.task is not None and array is self.task.array:
                reason = str(Reason.ARRAY_TASK_LIMIT)
            elif array is head and self.task is None:
                reason = self._why_it_waits()
            else:
                reason = str(Reason.DEPENDENCY)
            found.append(self._pending(array, array.stuck or (str(Reason.HELD_BY_USER) if array.is_held else reason)))
        return tuple(found)

    def nodes(self) -> tuple[Node, ...]:
        """The running task's."""
        return tuple(self._node(name) for name in self.task.nodes) if self.task else ()

    def healthy(self) -> int:
        """Nodes of the partition that Slurm gives work to."""
        return 0 if self._is_closed() else len(self.names) - len(self.out_of_service)

    def _head(self) -> Array | None:
        waiting = self.waiting
        return waiting[0] if waiting else None

    def _is_closed(self) -> bool:
        closed = self.maintenance
        return closed is not None and closed.starts_at <= self.clock.now < closed.ends_at

    def _why_it_waits(self) -> str:
        if self._is_closed():
            return "PartitionDown"
        if self._is_before_maintenance():
            return _BEFORE_MAINTENANCE
        return str(Reason.RESOURCES if self.waited_s > HOUR_S else Reason.PRIORITY)

    def _is_before_maintenance(self) -> bool:
        """Return whether the next task would run into it. Those with nodes set aside shorten their limit instead."""
        closed, now = self.maintenance, self.clock.now
        return closed is not None and not self.shape.is_exclusive and now < closed.starts_at < now + self._limit_s()

    def _limit_s(self) -> float:
        return self.shape.time_limit_s

    def _serve(self) -> Life:
        while True:
            head = self._head()
            is_free = self.task is None and head is not None and not head.is_held and not head.stuck
            if is_free and head is not None and not self._is_closed():
                if self.wait_s is None:
                    self.wait_s, self.waited_s = self.shape.draw_wait_s(self.chance), 0.0
                self.waited_s += _LOOK_S
                enough = self.healthy() >= self.shape.nodes
                if self.waited_s >= self.wait_s and enough and not self._is_before_maintenance():
                    self._start(head)
            yield self.clock.now + _LOOK_S

    def _start(self, array: Array) -> None:
        self._last_id += 1
        now = self.clock.now
        fit = [name for name in self.names if name not in self.out_of_service]
        nodes = tuple(sorted(self.chance.sample(fit, self.shape.nodes)))
        self.task = Task(self._last_id, array, array.next_task, now, now + self._limit_s(), nodes)
        array.next_task += 1
        self.waits_s.append(now - max(self._free_since, array.submitted_at))
        self.started(self.task)

    def _node(self, name: str) -> Node:
        reason = self.out_of_service.get(name)
        return Node(name, "allocated", "") if reason is None else Node(name, "draining", reason)

    def _running(self, task: Task) -> Job:
        now = self.clock.now
        return self._job(
            task.array,
            job_id=task.job_id,
            array_task=str(task.number),
            state=str(task.state),
            reason=str(Reason.NONE),
            nodes=",".join(task.nodes),
            elapsed_s=math.floor(now - task.started_at),
            started_at=task.started_at,
            ends_at=task.ends_at,
        )

    def _pending(self, array: Array, reason: str) -> Job:
        # Where others wait too, Slurm tells of some jobs when it expects them to start.
        expected = None
        if reason == Reason.PRIORITY and self.wait_s is not None and array.array_id % 3 == 0:
            expected = self.clock.now + max(MINUTE_S, self.wait_s - self.waited_s)
        return self._job(
            array,
            job_id=array.array_id,
            array_task=array.rest,
            state=str(State.PENDING),
            reason=reason,
            nodes="",
            elapsed_s=0,
            started_at=expected,
            ends_at=None,
        )

    def _job(
        self,
        array: Array,
        *,
        job_id: int,
        array_task: str,
        state: str,
        reason: str,
        nodes: str,
        elapsed_s: int,
        started_at: float | None,
        ends_at: float | None,
    ) -> Job:
        return Job(
            job_id=job_id,
            array_job_id=array.array_id,
            array_task=array_task,
            name=NAME,
            user=USER,
            partition=PARTITION,
            state=state,
            reason=reason,
            nodes=nodes,
            node_count=self.shape.nodes,
            elapsed_s=elapsed_s,
            time_limit_s=self.shape.time_limit_s,
            submitted_at=moment(array.submitted_at),
            started_at=None if started_at is None else moment(started_at),
            ends_at=None if ends_at is None else moment(ends_at),
            dependency="afterany" if reason == Reason.DEPENDENCY else "",
            comment="",
            work_dir="/lustre/tr-desk",
        )
