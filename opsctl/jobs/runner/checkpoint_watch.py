"""The watch over another program's checkpoints while it trains, and the lines that the training log gets of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.jobs.runner.task import Task
from opsctl.jobs.runner.watch_thread import WatchThread
from opsctl.run.checkpoints.adopted import SETTLED_S, adopt, prepare
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.program import Program, program_of
from opsctl.run.programs.progress import Translator
from trainer.formats.errors import CheckpointError
from trainer.formats.logs.log_lines import (
    FROM_RANDOM,
    CheckpointLoaded,
    CheckpointSaved,
    write_checkpoint_line,
)

_EVERY_S = 10.0


class CheckpointWatch(WatchThread):
    """Adopts each complete checkpoint, and reports it in the training log."""

    def __init__(self, paths: RunPaths, program: Program) -> None:
        super().__init__("checkpoint-watch", first_s=_EVERY_S)
        self._paths, self._program = paths, program

    def check(self) -> float | None:
        """Adopt what was written since the last check."""
        for line in self._adopt(SETTLED_S):
            self.report(line)
        return _EVERY_S

    def adopt_now(self) -> list[str]:
        """Adopt everything, after the program has ended; return the lines that were not reported."""
        return [*self.news(), *self._adopt(0.0)]

    def _adopt(self, settled_s: float) -> list[str]:
        try:
            found = adopt(self._paths, self._program, settled_s)
        except (OpsctlError, CheckpointError) as error:
            self.report_trouble(f"opsctl: {error}")
        except OSError as error:
            self.report_trouble(f"opsctl: checkpoints cannot be adopted: {file_problem(error)}")
        else:
            self.report_trouble("")
            return [write_checkpoint_line(CheckpointSaved(one.iteration, str(one.folder))) for one in found]
        return []


@dataclass(frozen=True)
class ProgramStart:
    """A start of another program."""

    program: Program
    checkpoint: Path | None  # from which it resumes
    problem: Exception | None = None  # why it cannot start

    @property
    def step(self) -> int:
        """Return the step that it continues from; 0 without a checkpoint."""
        found = self.program.kind.judge(self.checkpoint) if self.checkpoint else None
        return found.iteration if found else 0

    def log_line(self) -> str:
        """Return the log line of the start: from which checkpoint and step, or from the beginning."""
        if self.checkpoint is None:
            pattern = self.program.checkpoints
            why = f"No complete checkpoint matches {pattern}" if pattern else "[program] checkpoints is not set"
            return f"{why}:\n    {FROM_RANDOM}"
        return write_checkpoint_line(CheckpointLoaded(self.step, str(self.checkpoint)))

    def progress(self) -> Translator:
        """Return what makes training lines of the program's output."""
        kind = self.program.kind
        progress = kind.follow(self.step, self.program.batches_per_step) if kind.follow else kind.progress
        return Translator(progress, self.program.steps, self.program.global_batch_size)


def prepared_start(task: Task) -> ProgramStart | None:
    """Return the start of the task's program; None for our trainer, and for a damaged revision.

    What was saved before is adopted: by an attempt that was lost, or, if the run file allows it, before the run. An
    attempt that is opened later does not count it as its own.
    """
    if task.revision.damage:
        return None
    program = program_of(task.revision.file, task.revision.run_file.parent)
    if program is None:
        return None
    try:
        return ProgramStart(program, prepare(task.paths, program))
    except (OpsctlError, CheckpointError, OSError) as error:
        return ProgramStart(program, None, error)
