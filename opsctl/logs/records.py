"""What a training log says, as values. Pure; no file."""

from __future__ import annotations

from datetime import datetime

import msgspec


class Iteration(msgspec.Struct, frozen=True):
    """One logged iteration. None: this variant of the line does not say, or what it says is not a number."""

    iteration: int
    total_iterations: int
    consumed_samples: int | None = None
    consumed_tokens: int | None = None
    seconds: float | None = None  # per iteration, mean over the log interval
    learning_rate: float | None = None
    global_batch_size: int | None = None
    loss: float | None = None  # left out by the trainer when it is not a positive number
    loss_scale: float | None = None  # fp16 only
    grad_norm: float | None = None
    samples_per_second: float | None = None
    tflops: float | None = None  # per GPU, as the line itself counts them
    skipped_iterations: int | None = None
    nan_iterations: int | None = None
    others: dict[str, float] = {}  # further `name: number` parts, by their name


class Evaluation(msgspec.Struct, frozen=True):
    """The line inside an evaluation block."""

    group: str  # "validation", or the name of a weighted data group
    iteration: int | None  # None: at the end of training
    loss: float
    perplexity: float | None


class CheckpointSaving(msgspec.Struct, frozen=True):
    iteration: int
    folder: str


class CheckpointSaved(msgspec.Struct, frozen=True):
    iteration: int
    folder: str


class CheckpointLoaded(msgspec.Struct, frozen=True):
    iteration: int
    folder: str


class FreshStart(msgspec.Struct, frozen=True):
    """The trainer found no checkpoint and began from random weights."""


class Timers(msgspec.Struct, frozen=True):
    """`time (ms) | name: value | ...`"""

    milliseconds: dict[str, float]


class Stamp(msgspec.Struct, frozen=True):
    """`[what] datetime: ...`"""

    what: str
    at: datetime  # without zone: the trainer's local time


class Left(msgspec.Struct, frozen=True):
    """Why the trainer left."""

    reason: str  # "kill-switch", "exit-interval", "exit-duration", "stop-request", "finished", "signal"
    detail: str  # the path, iteration or minutes that it names
    at: datetime | None  # without zone


class Pulse(msgspec.Struct, frozen=True):
    """A watchdog's line about a job that is in the system."""

    at: datetime  # without zone
    name: str
    state: str  # one of opsctl.logs.pulse.STATES
    job_id: str = ""
    partition: str = ""
    nodes: str = ""
    elapsed: str = ""
    starts_at: str = ""  # real or expected
    text: str = ""  # everything after "PULSE: "


class Alert(msgspec.Struct, frozen=True):
    """A watchdog's line about a training that is in trouble or gone."""

    at: datetime | None  # without zone
    name: str
    team: str
    text: str  # between the asterisks


Record = (
    Iteration
    | Evaluation
    | CheckpointSaving
    | CheckpointSaved
    | CheckpointLoaded
    | FreshStart
    | Timers
    | Stamp
    | Left
    | Pulse
    | Alert
)


class Measured(msgspec.Struct, frozen=True):
    """What the end of a training log shows. None: it does not show it."""

    seconds_per_iteration: float | None = None  # median of the newest iterations
    evaluation_seconds: float | None = None  # the longest evaluation seen, all groups together
    save_seconds: float | None = None  # the longest save seen
    samples_per_second: float | None = None  # median of the newest iterations
    tflops: float | None = None  # per GPU, median of the newest iterations
    last_iteration: Iteration | None = None
    stamped_after_it: datetime | None = None  # with zone; when the first line with a time after it was written
