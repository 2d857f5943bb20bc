"""The watch over another program's checkpoints while it trains, and the lines that the training log gets of it."""

from __future__ import annotations

import contextlib
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


def adopt_left_over(task: Task) -> None:
    """Adopt what was saved before this attempt: by one that was lost, or, if the run file allows it, before the run.

    The attempt does not count it as its own. `prepare` reports what fails here.
    """
    with contextlib.suppress(OpsctlError, CheckpointError, OSError):
        if (program := program_of(task.revision.file, task.revision.run_file.parent)) is not None:
            prepare(task.paths, program)


def step_of(program: Program, checkpoint: Path | None) -> int:
    """Return the step that a start from `checkpoint` continues from; 0 without one."""
    found = program.kind.judge(checkpoint) if checkpoint else None
    return found.iteration if found else 0


def start_of_program(program: Program, checkpoint: Path | None, step: int) -> str:
    """Return the log line of a start: from which checkpoint and step, or from the beginning."""
    if checkpoint is None:
        pattern = program.checkpoints
        why = f"No complete checkpoint matches {pattern}" if pattern else "[program] checkpoints is not set"
        return f"{why}:\n    {FROM_RANDOM}"
    return write_checkpoint_line(CheckpointLoaded(step, str(checkpoint)))


def progress_of(program: Program, step: int) -> Translator:
    """Return what makes training lines of the program's output after a start from `step`."""
    kind = program.kind
    progress = kind.follow(step) if kind.follow else kind.progress
    return Translator(progress, program.steps, program.global_batch_size)
