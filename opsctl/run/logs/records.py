"""What a training log says beside the trainer's own lines, and what all of it together shows. Pure; no file."""

from __future__ import annotations

from datetime import datetime

import msgspec

from trainer.formats.logs.guard_lines import GuardLine, Left
from trainer.formats.logs.log_lines import (
    CheckpointFailed,
    CheckpointLoaded,
    CheckpointSaved,
    CheckpointSaving,
    Evaluation,
    FreshStart,
    Stamp,
    Timers,
)
from trainer.formats.logs.training_line import TrainingLine


class Saying(msgspec.Struct, frozen=True, kw_only=True):
    """What a watchdog says of a training, or of one job of it. A form of words shows only some of it."""

    name: str  # of the training
    state: str  # one of opsctl.run.logs.pulse.FORMS
    job_id: str = ""  # as squeue shows it
    partition: str = ""
    nodes: str = ""
    elapsed: str = ""  # since its start, or to its expected one
    starts_at: str = ""  # real or expected
    reason: str = ""  # Slurm's: why it waits, or its state
    detail: str = ""  # how far a finished training came, or why nothing can be seen


class Pulse(Saying, frozen=True, kw_only=True):
    """A watchdog's line about a job that is in the system."""

    at: datetime  # without a zone where the line says none
    text: str = ""  # everything after "PULSE: "


class Alert(msgspec.Struct, frozen=True):
    """A watchdog's line about a training that is in trouble or gone."""

    at: datetime | None  # without a zone where the line says none
    name: str
    team: str
    text: str  # between the asterisks


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a program says of its training as it starts; each line that says some of it is one of these."""

    sequence_length: int | None = None
    global_batch_size: int | None = None  # samples
    world_size: int | None = None  # ranks
    total_iterations: int | None = None
    starts_at: int | None = None  # the first iteration of this start


class SkippedRange(msgspec.Struct, frozen=True):
    """Iterations whose data was left out on request."""

    first: int
    last: int


class SaveEnded(msgspec.Struct, frozen=True):
    """A save is over, by a program that does not say which: that of the last iteration."""


Record = (
    TrainingLine
    | Evaluation
    | CheckpointSaving
    | CheckpointSaved
    | CheckpointFailed
    | CheckpointLoaded
    | FreshStart
    | Timers
    | Stamp
    | Left
    | GuardLine
    | Setting
    | SkippedRange
    | SaveEnded
    | Pulse
    | Alert
)


class Measured(msgspec.Struct, frozen=True):
    """What the end of a training log shows. None: it does not show it."""

    seconds_per_iteration: float | None = None  # median of the newest iterations
    iterations_per_line: int = 1  # median of the newest lines
    evaluation_seconds: float | None = None  # median of the newest evaluations, each with all its groups
    evaluations: int = 0  # how many that is the median of
    longest_evaluation_seconds: float | None = None  # of those
    save_seconds: float | None = None  # median of the newest saves
    saves: int = 0
    longest_save_seconds: float | None = None
    samples_per_second: float | None = None  # median of the newest iterations
    tflops: float | None = None  # per GPU, median of the newest iterations
    last_iteration: TrainingLine | None = None
    stamped_after_it: datetime | None = None  # with zone; of the first line after it that says when it was written
    is_followed: bool = False  # whether anything was logged after it
    is_saving: bool = False  # a save has begun after it, and has not ended
    failed_save: CheckpointFailed | None = None  # the newest save, where it came to nothing and no start came after it
