"""What a training log says, as values. Pure; no file."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Iteration:
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
    others: dict[str, float] = field(default_factory=dict)  # further `name: number` parts, by their name


@dataclass(frozen=True)
class Evaluation:
    """The line inside an evaluation block."""

    group: str  # "validation", or the name of a weighted data group
    iteration: int | None  # None: at the end of training
    loss: float
    perplexity: float | None


@dataclass(frozen=True)
class CheckpointSaving:
    iteration: int
    folder: str


@dataclass(frozen=True)
class CheckpointSaved:
    iteration: int
    folder: str


@dataclass(frozen=True)
class CheckpointLoaded:
    iteration: int
    folder: str


@dataclass(frozen=True)
class FreshStart:
    """The trainer found no checkpoint and began from random weights."""


@dataclass(frozen=True)
class Timers:
    """`time (ms) | name: value | ...`"""

    milliseconds: dict[str, float]


@dataclass(frozen=True)
class Stamp:
    """`[what] datetime: ...`"""

    what: str
    at: datetime  # without zone: the trainer's local time


@dataclass(frozen=True)
class Left:
    """Why the trainer left."""

    reason: str  # "kill-switch", "exit-interval", "exit-duration", "stop-request", "finished", "signal"
    detail: str  # the path, iteration or minutes that it names
    at: datetime | None  # without zone


@dataclass(frozen=True)
class Pulse:
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


@dataclass(frozen=True)
class Alert:
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


@dataclass(frozen=True)
class Measured:
    """What the end of a training log shows. None: it does not show it."""

    seconds_per_iteration: float | None = None  # median of the newest iterations
    evaluation_seconds: float | None = None  # the longest evaluation seen, all groups together
    save_seconds: float | None = None  # the longest save seen
    samples_per_second: float | None = None  # median of the newest iterations
    tflops: float | None = None  # per GPU, median of the newest iterations
    last_iteration: Iteration | None = None
    stamped_after_it: datetime | None = None  # with zone; when the first line with a time after it was written
