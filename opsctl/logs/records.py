"""What a training log says beside the trainer's own lines, and what all of it together shows. Pure; no file."""

from __future__ import annotations

from datetime import datetime

import msgspec

from trainer.formats.leave_lines import Left
from trainer.formats.log_lines import (
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointSaving,
    Evaluation,
    FreshStart,
    Stamp,
    Timers,
)
from trainer.formats.training_line import TrainingLine


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
    TrainingLine
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
    last_iteration: TrainingLine | None = None
    stamped_after_it: datetime | None = None  # with zone; when the first line with a time after it was written
