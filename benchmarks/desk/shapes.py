"""The simulated trainings: sizes, speeds and habits, each number with its source.

Two public trainings are the models. "shared" is BigScience's tr1-13B: 64 nodes of 4 V100 for 20 hours at a time, in a
queue with everybody else, where the next task waited between 1 and 30 hours. "exclusive" is BLOOM's, tr11-176B: 48 of
52 nodes of 8 A100 set aside for it, tasks of 100 hours.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.schedule import BatchRamp

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86400.0
#: Exit margin of both: they left 10 minutes before the limit, 1190 of 1200 and 5990 of 6000 minutes.
EXIT_MARGIN_S = 600.0


@dataclass(frozen=True)
class Shape:
    """One training on one cluster."""

    name: str
    nodes: int
    partition_nodes: int
    gpus_per_node: int
    is_exclusive: bool  # its nodes are set aside: waiting is no matter of a queue
    time_limit_s: int
    tasks: int  # of each array
    keep_queued: int
    log_interval: int
    ramp: BatchRamp
    learning_rate: LearningRateSchedule
    total_samples: int
    seconds_at_full_batch: float
    tflops_at_full_batch: float
    half_speed_batch: float  # TFLOPs are b / (b + this) of what they would be at an endless batch
    save_interval: int
    save_s: float
    eval_interval: int
    eval_s: float
    start_s: tuple[float, float]  # between the start of a task and its first iteration
    days_between_gpu_deaths: float
    checkpoint_bytes: float
    loss_noise: float  # relative, of one iteration at the full batch
    is_fp16: bool

    def seconds(self, batch: int) -> float:
        """Return the time of one iteration at this batch size, on healthy nodes: larger batches fill a pipeline
        more.
        """
        full, half = self.ramp.global_batch_size, self.half_speed_batch
        return self.seconds_at_full_batch * (batch + half) / (full + half)

    def tflops(self, batch: int, seconds: float) -> float:
        """Per GPU, of an iteration that took `seconds`."""
        per_sample = self.tflops_at_full_batch * self.seconds_at_full_batch / self.ramp.global_batch_size
        return per_sample * batch / seconds

    def loss(self, samples: float) -> float:
        """In nats: a power law that starts near the log of a vocabulary of 250,000 and comes down to about 2.

        BLOOM's passed 2.2 in its second month and ended below 2; tr1-13B's was 2.38 at 153 M samples.
        """
        return 1.75 + 10.7 * math.pow(1.0 + samples / 2e3, -0.33)

    def draw_wait_s(self, chance: random.Random) -> float:
        """Return how long a task waits for its nodes.

        Shared: 1 to 30 hours say the chronicles, "unpredictable"; a log-normal with a median of 4 hours has 5 % below
        50 minutes and 2.5 % above 28 hours. Exclusive: the time Slurm takes to look at it and to clean nodes up.
        """
        if self.is_exclusive:
            return chance.uniform(60, 600)
        return min(chance.lognormvariate(math.log(4 * HOUR_S), 1.0), 48 * HOUR_S)


def shared(chance: random.Random) -> Shape:
    """A training like tr1-13B: 13.2 s an iteration at a batch of 1024, a log line every 10, fp16."""
    batch = 1024
    total = 1_000_000_000  # it had 146 M, three months' worth: here it goes on for as long as is simulated
    return Shape(
        name="shared",
        nodes=64,
        partition_nodes=chance.choice((180, 260, 420)),
        gpus_per_node=4,
        is_exclusive=False,
        time_limit_s=20 * 3600,
        tasks=chance.choice((5, 10)),
        keep_queued=2,
        log_interval=10,
        ramp=BatchRamp(16, 16, 5_000_000, batch),
        learning_rate=LearningRateSchedule(1e-4, 1e-5, 216_320, 126_953_125, "cosine"),
        total_samples=total,
        seconds_at_full_batch=chance.uniform(12.5, 14.0),
        tflops_at_full_batch=chance.uniform(44, 50),  # 45 in tr1's own estimate of its days
        half_speed_batch=120.0,
        save_interval=chance.choice((300, 1500)),  # both were used
        save_s=chance.uniform(20, 60),
        eval_interval=1000,
        eval_s=chance.uniform(30, 70),  # 5 iterations forward only
        start_s=(180.0, 600.0),
        days_between_gpu_deaths=chance.uniform(10, 20),
        checkpoint_bytes=0.19e12,  # 14 bytes a parameter
        loss_noise=0.009,
        is_fp16=True,
    )


def exclusive(chance: random.Random) -> Shape:
    """A training like BLOOM: 105 s an iteration at a batch of 2048, a line for each, bf16, 12 minutes an evaluation."""
    batch = 2048
    return Shape(
        name="exclusive",
        nodes=48,
        partition_nodes=52,
        gpus_per_node=8,
        is_exclusive=True,
        time_limit_s=100 * 3600,
        tasks=chance.choice((3, 10)),
        keep_queued=2,
        log_interval=1,
        ramp=BatchRamp(192, 16, 9_765_625 // 16 * 16, batch),
        learning_rate=LearningRateSchedule(6e-5, 6e-6, 183_105, 200_000_000, "cosine"),
        total_samples=450_000_000,  # more than its 220 M, for the same reason
        seconds_at_full_batch=chance.uniform(104, 107),
        tflops_at_full_batch=chance.uniform(147, 151),
        half_speed_batch=247.0,  # makes 73 TFLOPs at 192 and 113 at 512 out of 149 at 2048, as were seen
        save_interval=chance.choice((100, 200)),  # 250, then 200, then 100
        save_s=40.0,
        eval_interval=1000,
        eval_s=chance.uniform(660, 780),  # 29 sets in about 12 minutes
        start_s=(300.0, 900.0),
        days_between_gpu_deaths=chance.uniform(6, 9),  # "weekly"
        checkpoint_bytes=2.3e12,
        loss_noise=0.006,
        is_fp16=False,
    )


def shape_of(seed: int) -> Shape:
    """The training of this seed: one in two is shared."""
    chance = random.Random(f"{seed}/shape")
    return exclusive(chance) if seed % 2 else shared(chance)
