"""A simulated world as the checks see it: a snapshot of the product's own types, and the settings of its run."""

from __future__ import annotations

import itertools
import random
from collections import deque
from datetime import datetime

from benchmarks.desk.log import moment
from benchmarks.desk.queue import NAME, PARTITION, USER
from benchmarks.desk.shapes import HOUR_S
from benchmarks.desk.trainer import CHECKPOINTS, KILL_SWITCH, REVISION
from benchmarks.desk.world import EVERYBODYS_BYTES, SCRATCH_BYTES, SCRATCH_INODES, World
from opsctl.monitoring.check import Settings
from opsctl.monitoring.snapshot import (
    Clock,
    CronJob,
    CronSeen,
    FaultyCheckpoint,
    Part,
    PartitionNodes,
    Published,
    Purge,
    Snapshot,
    Space,
)
from opsctl.run.checkpoints.inventory import Checkpoint
from opsctl.run.config.schema import ExpectTable, WatchTable
from opsctl.run.state.alert_log import ChannelSeen
from opsctl.run.state.kill_switch import KillSwitchState
from opsctl.run.state.lease import Seen as Lease
from opsctl.slurm.states import State
from trainer.formats.attempt.lease import Holder
from trainer.recipe.save_schedule import SavePhase, SaveSchedule

_CRON_JOBS = ("hourly/slurm-status", "hourly/progress", "hourly/refill", "daily/fs-watchdog")
#: Nodes whose clocks are read.
_CLOCKS = 8
#: Looks at file systems that are kept: all of two days, and of the 28 days before one in six hours.
_RECENT_LOOKS, _OLDER_LOOKS, _OLDER_EACH = 48, 28 * 4, 6


def settings_of(world: World) -> Settings:
    """As from a run file that leaves [watch] as it is, but says where nodes are set aside and what is planned."""
    shape = world.shape
    return Settings(
        name=NAME,
        team="on-call",
        watch=WatchTable(must_run=shape.is_exclusive),
        expect=ExpectTable(tflops=round(shape.tflops_at_full_batch)),
        keep_queued=shape.keep_queued,
        nodes=shape.nodes,
        time_limit_s=shape.time_limit_s,
        saves=SaveSchedule((SavePhase(shape.save_interval),)),
        global_batch_size=shape.ramp.global_batch_size,
        array=f"1-{shape.tasks}%1",
    )


class Viewer:
    """A user who looks again and again, with what earlier looks at file systems found."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._recent: deque[tuple[Space, ...]] = deque()
        self._older: deque[tuple[Space, ...]] = deque(maxlen=_OLDER_LOOKS)
        self._looks = 0
        self._chance: random.Random = world.chance("viewer")

    def look(self) -> Snapshot:
        """The world now."""
        world, trainer, desk, chance = self.world, self.world.trainer, self.world.desk, self._chance
        now = moment(world.clock.now)
        # What another node wrote is there within seconds on NFS; some clients keep attributes for minutes.
        world.log.read(world.clock.now, chance.uniform(60, 300) if chance.random() < 0.03 else chance.uniform(0, 30))
        measured, series = world.log.measured(), world.log.series()
        last = trainer.saved[-1]
        spaces = self._spaces(now)
        is_blind = desk.blind is not None
        running = world.queue.task
        seen = Snapshot(
            now=now,
            jobs=() if is_blind else world.queue.jobs(),
            blind=desk.blind,
            was_submitted=True,
            nodes=() if is_blind else world.queue.nodes(),
            checkpoint=None
            if desk.latest_problem
            else Checkpoint(CHECKPOINTS / f"global_step{last.iteration}", last.iteration, last.samples),
            checkpoint_at=None if desk.latest_problem else moment(last.at),
            checkpoint_problem=desk.latest_problem,
            total_samples=world.shape.total_samples,
            measured=measured,
            log_written_at=world.log.written_at,
            attempts=tuple(trainer.attempts),
            attempts_without_progress=world.without_progress(),
            lease=self._lease(),
            problems=() if desk.blind is None else ((Part.NODES, desk.blind), (Part.PARTITION, desk.blind)),
            kill_switch=self._kill_switch(),
            published=Published(REVISION, moment(0.0), USER, desk.differs),
            partition=None if is_blind else PartitionNodes(PARTITION, len(world.queue.names), world.queue.healthy()),
            series=series.iterations,
            guarded=series.guarded,
            faulty=self._faulty(f"global_step{last.iteration}"),
            spaces=spaces,
            space_history=tuple(itertools.chain(*self._older, *self._recent)),
            purge=None
            if desk.purge is None
            else Purge("/lustre/tr-desk", desk.purge[0], 10**9, moment(desk.purge[1]), "/lustre/tr-desk/data/a.bin"),
            clocks=self._clocks(now, running.nodes[:_CLOCKS] if running and running.state == State.RUNNING else ()),
            cron=self._cron(),
            channels=self._channels(),
            chains=tuple(world.queue.chains),
        )
        self._remember(spaces)
        return seen

    def _remember(self, spaces: tuple[Space, ...]) -> None:
        """Every look of two days, and one in six hours of the month before, as the records keep them."""
        self._recent.append(spaces)
        if len(self._recent) > _RECENT_LOOKS:
            gone = self._recent.popleft()
            self._looks += 1
            if self._looks % _OLDER_EACH == 0:
                self._older.append(gone)

    def _spaces(self, now: datetime) -> tuple[Space, ...]:
        disk = self.world.disk
        return (
            Space(
                "/lustre",
                now,
                used_bytes=int(disk.used_bytes),
                limit_bytes=SCRATCH_BYTES,
                used_inodes=int(disk.used_inodes),
                limit_inodes=SCRATCH_INODES,
                how="quota",
            ),
            Space(
                "/lustre/tr-desk",
                now,
                used_bytes=int(disk.everybodys_share * EVERYBODYS_BYTES),
                limit_bytes=EVERYBODYS_BYTES,
                how="statvfs",
            ),
            Space("/lustre/tr-desk (this run)", now, used_bytes=int(disk.own_bytes), used_inodes=9000, how="walk"),
        )

    def _lease(self) -> Lease:
        task, attempts = self.world.queue.task, self.world.trainer.attempts
        if task is None or not attempts or not attempts[-1].is_open:
            return Lease()
        holder = Holder(len(attempts), attempts[-1].id, task.job_id, USER, task.nodes[0], attempts[-1].opened_at)
        return Lease(holder, self._chance.uniform(0, 21))

    def _kill_switch(self) -> KillSwitchState:
        at = self.world.trainer.kill_switch_at
        return KillSwitchState(
            KILL_SWITCH, is_armed=True, is_triggered=at is not None, by=USER, at=None if at is None else moment(at)
        )

    def _faulty(self, latest: str) -> tuple[FaultyCheckpoint, ...]:
        name = self.world.desk.cut_short
        return (FaultyCheckpoint(name, "mp_rank_00.pt has 10 bytes of 400", name == latest),) if name else ()

    def _clocks(self, now: datetime, nodes: tuple[str, ...]) -> tuple[Clock, ...]:
        off = dict.fromkeys(nodes, 0.0)
        wrong = self.world.desk.clock_off
        if wrong is not None and nodes:
            node, seconds = wrong
            off[node if node in off else nodes[0]] = seconds
        return tuple(Clock(node, seconds + self._chance.gauss(0, 0.2), now) for node, seconds in off.items())

    def _cron(self) -> CronSeen:
        cron = self.world.cron
        jobs = []
        for name in _CRON_JOBS:
            failures, since = cron.failing.get(name, (0, 0.0))
            state = "failed" if failures else "done"
            jobs.append(CronJob(name, state, failures, moment(since) if failures else None))
        grid_s = (cron.heartbeat_at // HOUR_S) * HOUR_S
        return CronSeen(
            folder="/work/cron",
            is_started=True,
            carried_by="ada, Slurm",
            heartbeat_at=moment(cron.heartbeat_at),
            next_due_at=moment(grid_s + HOUR_S),
            jobs=tuple(jobs),
        )

    def _channels(self) -> tuple[ChannelSeen, ...]:
        since = self.world.desk.channel_failing_since
        failing = (
            ChannelSeen("mail", moment(since), "connection refused", 2) if since is not None else ChannelSeen("mail")
        )
        return (failing, ChannelSeen("matrix"))
