"""Records of a training log other than the trainer's own lines, and the measurements of a whole log. Pure; no file."""

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


class WatchdogState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a training, or of one of its jobs, from a watchdog. Each state uses only some of the fields."""

    name: str  # of the training
    state: str  # one of opsctl.run.logs.pulse.FORMS
    job_id: str = ""  # as squeue shows it
    partition: str = ""
    nodes: str = ""
    elapsed: str = ""  # since its start, or to its expected one
    starts_at: str = ""  # real or expected
    reason: str = ""  # Slurm's pending reason or state
    detail: str = ""  # the progress of a finished training, or why nothing can be seen


class Pulse(WatchdogState, frozen=True, kw_only=True):
    """A watchdog's line about a job that Slurm knows."""

    at: datetime  # without a zone if the line has none
    text: str = ""  # everything after "PULSE: "


class Alert(msgspec.Struct, frozen=True):
    """A watchdog's line about a training with a problem or without a job."""

    at: datetime | None  # without a zone if the line has none
    name: str
    team: str
    text: str  # between the asterisks


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that a program prints at its start, from one line each."""

    sequence_length: int | None = None
    global_batch_size: int | None = None  # samples
    world_size: int | None = None  # ranks
    total_iterations: int | None = None
    starts_at: int | None = None  # the first iteration of this start


class SkippedRange(msgspec.Struct, frozen=True):
    """Iterations that were skipped on request."""

    first: int
    last: int


class SaveEnded(msgspec.Struct, frozen=True):
    """The end of a save, by a program that does not name it: the save of the last iteration."""


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


def reports_loss(line: TrainingLine) -> bool:
    """Return True for a line with a loss, also one that is not a number."""
    return line.loss is not None or line.nan_iterations is not None


class Measured(msgspec.Struct, frozen=True):
    """Measurements from the end of a training log. None: not in the log."""

    seconds_per_iteration: float | None = None  # median of the newest iterations
    iterations_per_line: int = 1  # median of the newest lines
    evaluation_seconds: float | None = None  # median of the newest evaluations, each with all its groups
    evaluations: int = 0  # number of these evaluations
    longest_evaluation_seconds: float | None = None  # of those
    save_seconds: float | None = None  # median of the newest saves
    saves: int = 0
    longest_save_seconds: float | None = None
    samples_per_second: float | None = None  # median of the newest iterations
    tflops: float | None = None  # per GPU, median of the newest iterations
    last_iteration: TrainingLine | None = None
    last_with_loss: TrainingLine | None = None  # another program may log its loss only every few iterations
    stamped_after_it: datetime | None = None  # with zone; of the first stamped line after it
    is_followed: bool = False  # True if anything was logged after it
    is_saving: bool = False  # a save began after it and has not ended
    failed_save: CheckpointFailed | None = None  # the newest save, if it failed and no start followed

    @property
    def newest_loss(self) -> TrainingLine | None:
        """The last line with a loss; the last one of all if none has one."""
        last = self.last_iteration
        return last if last is None or reports_loss(last) else self.last_with_loss or last
