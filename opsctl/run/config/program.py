"""The training program of a run file: its kind, with what `[program]` changes of it."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import takewhile
from pathlib import Path

from opsctl.run.config.schema import COMMAND, HOOK, ProgramTable, RunFile
from opsctl.run.programs.kind import Kind, SavedCheckpoint, found, no_progress
from opsctl.slurm.durations import parse_duration_s
from trainer.recipe.options import Options

_NO_STOP = "none"
#: A character that glob.escape has escaped.
_ESCAPED = re.compile(r"\[([*?[])\]")
#: Prefix of a checkpoint that the program must not find.
ASIDE = "aside-"


@dataclass(frozen=True)
class Program:
    """A run's training program, as its run file describes it."""

    kind: Kind
    command: tuple[str, ...]
    folder: Path  # where it is started, and where relative patterns begin
    launch: str
    stop: str | None  # signal name or HOOK; None: it saves on no request
    grace_s: int
    checkpoints: str | None  # absolute pattern
    existing: str | None  # see ProgramTable.existing
    resume: tuple[str, ...] | None  # in place of the kind's arguments
    steps: int | None
    global_batch_size: int | None
    batches_per_step: int
    prunes: bool  # [retention] decides which adopted checkpoints stay

    @property
    def reports_progress(self) -> bool:
        """Return whether its output has lines of progress that are understood."""
        return self.kind.name != COMMAND or self.kind.progress is not no_progress

    def paths(self) -> list[Path]:
        """Return what its pattern of checkpoints matches, without links to others."""
        matching = map(Path, glob.glob(self.checkpoints or ""))  # noqa: PTH207 - an absolute pattern
        return [one for one in matching if not one.name.startswith(ASIDE) and not one.is_symlink()]

    def place_of(self, path: Path) -> Path:
        """Return where its pattern has a checkpoint that was at `path`, maybe before the run was moved."""
        pattern = Path(self.checkpoints or "/").parts
        fixed = list(takewhile(lambda part: not glob.has_magic(_ESCAPED.sub("", part)), pattern))
        moved = Path(*(_ESCAPED.sub(r"\1", part) for part in fixed), *path.parts[len(fixed) - len(pattern) :])
        return moved if len(fixed) < len(pattern) and fnmatch(str(moved), str(self.checkpoints)) else path

    def saved(self) -> list[SavedCheckpoint]:
        """Return its checkpoints, the newest first."""
        return found(self.paths(), self.kind.judge)

    def resume_arguments(self, checkpoint: Path | None) -> Sequence[str]:
        """Return the arguments that resume from `checkpoint`, none without one."""
        if checkpoint is None:
            return ()
        if self.resume is None:
            return self.kind.resume(checkpoint)
        return [word.replace("{checkpoint}", str(checkpoint)) for word in self.resume]

    @property
    def saves_on_request(self) -> bool:
        """Return whether it can save when it is asked to leave, as far as its command shows."""
        option = self.kind.saves_with if self.stop != HOOK else None
        return self.stop is not None and (
            option is None or any(word.startswith(option.split()[0]) for word in self.command)
        )

    def lacks(self, lost_s: float | None = None) -> list[str]:
        """Return what cannot be done with it, as sentences. lost_s: the time between its checkpoints, if known."""
        found = list(self.kind.lacks)
        if not self.saves_on_request:
            minutes = None if lost_s is None else max(1, round(lost_s / 60))
            lost = "the work since the last checkpoint" if minutes is None else f"up to {minutes} min of work"
            option = f" (it saves with {self.kind.saves_with})" if self.kind.saves_with else ""
            found.insert(0, f"No save on request{option}: {lost} is lost at each stop.")
        return found if self.steps else [*found, "[program] steps is not set: no progress in percent."]


def program_of(file: RunFile, folder: Path) -> Program | None:
    """Return the program of an expanded run file in `folder`; None for our trainer."""
    table = file.program
    if table is None:
        return None
    folder /= table.folder or ""
    from opsctl.run.programs import command  # commands that only read a run need no kind
    from opsctl.run.programs.registry import KINDS

    stop = None if table.stop == _NO_STOP else table.stop
    kind = KINDS.get(table.kind) or command.kind_of(
        stop, table.complete, table.progress, table.resume or (), not glob.has_magic(table.checkpoints or "*")
    )
    pattern = table.checkpoints or kind.checkpoints
    return Program(
        kind=kind,
        command=table.command,
        folder=folder,
        launch=table.launch or kind.launch,
        stop=kind.saves_on if table.stop is None else stop,
        grace_s=parse_duration_s(table.grace),
        checkpoints=None if pattern is None else str(Path(glob.escape(str(folder))) / pattern),
        existing=table.existing,
        resume=table.resume,
        steps=table.steps,
        global_batch_size=table.global_batch_size,
        batches_per_step=table.batches_per_step,
        prunes=file.retention is not None,
    )


def options_of_program(program: ProgramTable) -> Options:
    """Return the trainer's options that hold for another program: only its length and batch."""
    return Options({"train_iters": program.steps, "global_batch_size": program.global_batch_size or 1})
