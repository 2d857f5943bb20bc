"""One simulated training with all around it: file systems, the cron, channels, and the people who look after it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from benchmarks.desk.clockwork import Clockwork, Life
from benchmarks.desk.kinds import BY_NAME, Trouble
from benchmarks.desk.log import Log
from benchmarks.desk.queue import Maintenance, Queue
from benchmarks.desk.shapes import DAY_S, HOUR_S, MINUTE_S, Shape, shape_of
from benchmarks.desk.trainer import Saved, Trainer
from opsctl.monitoring.gather.records import SERIES_LINES
from opsctl.run.attempts.failure_limit import without_progress
from opsctl.run.state.chains import REFILL, last_word
from opsctl.slurm.arrays import arrays_missing
from trainer.recipe.schedule import train_iterations

#: The file systems: BLOOM's group had 400 TiB of scratch; inodes as on the work file system.
SCRATCH_BYTES, SCRATCH_INODES = 400 * 2**40, 5_000_000
EVERYBODYS_BYTES = 4 * 2**50


@dataclass
class Disk:
    """The group's quota, which others use too."""

    others_share: float
    others_inode_share: float
    extra_bytes: float = 0.0  # of an incident
    extra_inodes: float = 0.0
    used_bytes: float = 0.0
    used_inodes: float = 0.0
    own_bytes: float = 0.0
    everybodys_share: float = 0.7  # of the whole file system


@dataclass
class Cron:
    """The pseudo-cron."""

    heartbeat_at: float = 0.0
    is_dead: bool = False
    refills: bool = True
    failing: dict[str, tuple[int, float]] = field(default_factory=dict)  # job -> failures in a row, since


@dataclass
class Desk:
    """The other things that can be checked."""

    blind: str | None = None
    channel_failing_since: float | None = None
    differs: tuple[str, ...] = ()
    kill_switch_by: str = "ada"
    purge: tuple[int, float] | None = None  # files, when the first of them goes
    clock_off: tuple[str, float] | None = None  # node, seconds
    cut_short: str = ""  # the checkpoint that is
    latest_problem: str | None = None


class World:
    """Everything, and its own chances; the same of a seed every time.

    roughness: how much larger all noise is than what is known of real trainings.
    """

    def __init__(self, seed: int, roughness: float = 1.0) -> None:
        self.seed, self.roughness = seed, roughness
        self.shape: Shape = shape_of(seed)
        self.clock = Clockwork()
        self.log = Log(SERIES_LINES)
        self.queue = Queue(self.clock, self.shape, self.chance("queue"))
        self.trainer = Trainer(self.clock, self.shape, self.log, self.queue, self.chance("trainer"), roughness)
        self.trainer.died = self._gpu_died
        self.troubles: list[Trouble] = []
        self.cron, self.desk = Cron(), Desk()
        people = self.chance("disk")
        self.disk = Disk(people.uniform(0.45, 0.65), people.uniform(0.4, 0.6))
        self._begin_somewhere()
        lives = (self._disk, self._rotation, self._cron, self._people, self._maintenance, self._outages)
        for life in (*lives, self._edits, self._holds, self._stops, self._hiccups):
            self.clock.start(life())

    def chance(self, what: str) -> random.Random:
        """A source of chance of its own for each part, so that one more of one kind shifts no other."""
        return random.Random(f"{self.seed}/{what}")

    def note(self, kind: str, words: str = "") -> Trouble:
        """Something begins now."""
        trouble = Trouble(BY_NAME[kind], self.clock.now, words=words)
        self.troubles.append(trouble)
        return trouble

    def _gpu_died(self) -> None:
        self.note("GPU death").ends_at = self.clock.now + HOUR_S

    def _begin_somewhere(self) -> None:
        """One training in three is in its ramp, the others are under way."""
        chance, shape, trainer = self.chance("beginning"), self.shape, self.trainer
        ramp = shape.ramp
        samples = int(chance.uniform(0.0, 1.0) * ramp.ramp_samples)
        if chance.random() < 2 / 3:
            samples = int(ramp.ramp_samples * chance.uniform(1.2, 6))
        iteration = train_iterations(ramp, samples) // shape.save_interval * shape.save_interval
        trainer.total_iterations = train_iterations(ramp, shape.total_samples)
        trainer.saved = [Saved(iteration, samples, 0.0)]
        trainer.iteration, trainer.samples = iteration, samples
        for _ in range(shape.keep_queued + 1):
            self.queue.submit()

    def _disk(self) -> Life:
        """Others' share wanders, and jumps when a user unpacks a data set or clears one away."""
        chance, disk = self.chance("others"), self.disk
        middle, wander, jump = disk.others_share, 0.0, 0.0
        while True:
            wander = 0.999 * wander + chance.gauss(0, 0.0006 * self.roughness)
            if chance.random() < 1 / 120:
                jump = chance.uniform(0.0, 0.03 * self.roughness)
            share = middle + wander + jump
            disk.own_bytes = len(self.trainer.saved) * self.shape.checkpoint_bytes
            disk.used_bytes = share * SCRATCH_BYTES + disk.own_bytes + disk.extra_bytes
            # The whole file system: a percent more over a day, which the purge at midnight takes back.
            day = self.clock.now % DAY_S / DAY_S
            disk.everybodys_share = middle + 0.12 + 0.5 * wander + 0.01 * day
            inodes = disk.others_inode_share + 0.5 * wander
            disk.used_inodes = inodes * SCRATCH_INODES + 700 * len(self.trainer.saved) + disk.extra_inodes
            yield self.clock.now + HOUR_S / 2

    def _rotation(self) -> Life:
        """Daily all but the newest 15 to 20 checkpoints and every thousandth go; those, once a week, to the archive."""
        chance, keep = self.chance("rotation"), self.chance("rotation").randint(15, 20)
        day = 0
        while True:
            yield self.clock.now + DAY_S + chance.uniform(-HOUR_S, HOUR_S)
            day += 1
            saved = self.trainer.saved
            thousandths = [one for one in saved[:-keep] if one.iteration % 1000 == 0 and day % 7]
            self.trainer.saved = thousandths + saved[-keep:]

    def _cron(self) -> Life:
        """A tick an hour; most begin within minutes, some wait for a node of their partition."""
        chance = self.chance("cron")
        for number in range(1, 100_000):
            yield number * HOUR_S + self._cron_waits(chance)
            if not self.cron.is_dead:
                self.cron.heartbeat_at = self.clock.now
                self.clock.at(self.clock.now + chance.uniform(20, 200), self._refill)

    @staticmethod
    def _cron_waits(chance: random.Random) -> float:
        return chance.uniform(10, 55) * MINUTE_S if chance.random() < 0.05 else chance.uniform(5, 150)

    def _refill(self) -> None:
        """Refill the queue as `opsctl refill` does."""
        if not self.cron.refills or self.trainer.kill_switch_at is not None or self.brake_holds or self.desk.blind:
            return
        while arrays_missing(self.queue.jobs(), self.shape.keep_queued, None, 0.0, self.shape.tasks):
            self.queue.submit(REFILL)

    @property
    def brake_holds(self) -> bool:
        """Return whether attempts get nowhere, so that nothing is submitted without a person."""
        return self.without_progress() >= 3

    def without_progress(self) -> int:
        """Attempts in a row since the last submission that a person wanted."""
        word = last_word(self.queue.chains)
        return without_progress(self.trainer.attempts, word.submitted_at) if word else 0

    def _people(self) -> Life:
        """No one lets a brake or an empty queue that no incident accounts for stand for more than some hours."""
        while True:
            yield self.clock.now + 6 * HOUR_S
            if self.brake_holds and not any(trouble.ends_at is None for trouble in self.troubles):
                self.queue.submit()

    def _maintenance(self) -> Life:
        """Every five or six weeks the partition is closed for a day; it is announced three days before."""
        chance = self.chance("maintenance")
        while True:
            yield self.clock.now + chance.uniform(20, 45) * DAY_S
            starts_at = self.clock.now + 3 * DAY_S
            self.queue.maintenance = Maintenance(starts_at, starts_at + chance.uniform(10, 30) * HOUR_S)
            trouble = self.note("maintenance")
            yield starts_at
            self.trainer.save_and_leave()
            yield self.queue.maintenance.ends_at
            trouble.ends_at = self.clock.now
            self.queue.maintenance = None

    def _outages(self) -> Life:
        """Slurm's controller is away for minutes to two hours, every ten days or so."""
        chance = self.chance("outages")
        while True:
            yield self.clock.now + chance.expovariate(1 / (10 * DAY_S))
            trouble = self.note("no answer from Slurm")
            self.desk.blind = "Slurm does not answer: slurm_load_jobs error: Unable to contact slurm controller"
            yield self.clock.now + min(chance.lognormvariate(math.log(25), 0.8), 150) * MINUTE_S
            self.desk.blind = None
            trouble.ends_at = self.clock.now

    def _edits(self) -> Life:
        """A user edits the run file, thinks, and publishes it within the hour, every twelve days."""
        chance = self.chance("edits")
        while True:
            yield self.clock.now + chance.expovariate(1 / (12 * DAY_S))
            if self.desk.differs:
                continue
            trouble = self.note("edited, then published")
            self.desk.differs = ("slurm.exclude",)
            yield self.clock.now + chance.uniform(5, 50) * MINUTE_S
            self.desk.differs = ()
            trouble.ends_at = self.clock.now

    def _holds(self) -> Life:
        """A colleague holds what is queued behind, to let a user's short job through, and lets go an hour later."""
        chance = self.chance("holds")
        while True:
            yield self.clock.now + chance.expovariate(1 / (12 * DAY_S))
            behind = [one for one in self.queue.waiting if self.queue.task and one is not self.queue.task.array]
            if not behind or behind[-1].is_held:
                continue
            trouble = self.note("held on purpose")
            behind[-1].is_held = True
            yield self.clock.now + chance.uniform(20, 90) * MINUTE_S
            behind[-1].is_held = False
            trouble.ends_at = self.clock.now

    def _stops(self) -> Life:
        """The kill switch is used as it is meant to be: the training leaves, something is changed, it goes on."""
        chance = self.chance("stops")
        while True:
            yield self.clock.now + chance.expovariate(1 / (25 * DAY_S))
            if self.trainer.kill_switch_at is not None or not self.trainer.is_training:
                continue
            trouble = self.note("stopped on purpose")
            self.trainer.kill_switch_at = self.clock.now
            yield self.clock.now + chance.uniform(15, 80) * MINUTE_S
            self.trainer.kill_switch_at = None
            trouble.ends_at = self.clock.now
            self._refill()

    def _hiccups(self) -> Life:
        """A mail server that refuses for half an hour, a cron job that fails once, a clock read on a busy server."""
        chance = self.chance("hiccups")
        while True:
            yield self.clock.now + chance.expovariate(1 / (5 * DAY_S))
            which = chance.choice(("channel hiccup", "cron job hiccup", "clock misread"))
            if which == "channel hiccup" and self.desk.channel_failing_since is None:
                trouble = self.note(which)
                self.desk.channel_failing_since = self.clock.now
                yield self.clock.now + chance.uniform(5, 40) * MINUTE_S
                self.desk.channel_failing_since = None
            elif which == "cron job hiccup" and not self.cron.failing:
                trouble = self.note(which)
                self.cron.failing["hourly/progress"] = (1, self.clock.now)
                yield self.clock.now + HOUR_S
                self.cron.failing.clear()
            elif which == "clock misread" and self.desk.clock_off is None:
                trouble = self.note(which)
                self.desk.clock_off = (self.queue.names[0], chance.uniform(5, 20))
                yield self.clock.now + HOUR_S
                self.desk.clock_off = None
            else:
                continue
            trouble.ends_at = self.clock.now
