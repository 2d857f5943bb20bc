"""The settings of a run's evaluations: the published [evaluation], or before the first publish that of the run file.

Evaluations run as the caller. So only users who decide what the caller runs anyway may decide about them.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.core.errors import OpsctlError, RunFileError, file_problem
from opsctl.core.files.trusted import who_else_can_write
from opsctl.core.process import find_program
from opsctl.run.config.load import expanded_file
from opsctl.run.config.schema import EvaluationTable, RunFile
from opsctl.run.state.revisions import deciding_group, newest_to_start
from opsctl.run.state.run_view import RunView
from trainer.formats.json_text import json_line


@dataclass(frozen=True)
class Settings:
    """The effective settings, with all variables expanded."""

    table: EvaluationTable
    tasks: tuple[str, ...]  # by lm-eval's names
    variables: dict[str, str] = field(default_factory=dict)  # [env]
    warnings: tuple[str, ...] = ()
    run_file: Path | None = None  # the run file that says so; None: a revision

    @property
    def python(self) -> str:
        """The interpreter that has lm-eval."""
        return self.table.python or sys.executable

    def digest(self, version: str) -> str:
        """Return a digest of all that shapes an answer, with lm-eval's version: an answer counts under it alone."""
        keys = ("few_shot", "limit", "dtype", "model_args", "include", "batch_size")
        shaping = {key: getattr(self.table, key) for key in keys}
        return hashlib.sha256(json_line({**shaping, "lm_eval": version}).encode()).hexdigest()[:16]


def settings_of(run: RunView) -> Settings | None:
    """Return the published settings, as for everything that the scheduler runs; None if no tasks are set.

    A revision of a user who may not decide what the caller runs is skipped. If there is no other, the caller's run file
    counts. Raises RunFileError for an unset variable and for tasks that cannot be combined, OpsctlError for a damaged
    revision, and if all revisions belong to such users.
    """
    revision, passed_over = newest_to_start(run.paths)
    if revision is not None and revision.damage:
        raise OpsctlError(revision.damage)
    others = tuple(
        f"revision {one.name} of {one.created_by} is skipped: its programs would run as you" for one in passed_over
    )
    if revision is not None:
        written = run.loaded.file.evaluation if run.loaded else None
        is_other = written is not None and revision.file.evaluation is None
        unpublished = ("the run file's [evaluation] is not published yet: opsctl revise publishes it",) * is_other
        return _settings(revision.file, (*others, *unpublished))
    if run.loaded is None:
        if others:
            raise OpsctlError(f"{others[0]}; have {passed_over[0].created_by.partition('@')[0]} evaluate it")
        return None
    return _settings(expanded_file(run.loaded), others, run.loaded.path)


def is_evaluated(run: RunView) -> bool:
    """Return whether the run is published and [evaluation] names tasks. Raises OpsctlError as `settings_of`."""
    return run.revision is not None and (settings := settings_of(run)) is not None and bool(settings.tasks)


def _settings(file: RunFile, warnings: tuple[str, ...], run_file: Path | None = None) -> Settings | None:
    if file.evaluation is None:
        return None
    if "results" in file.evaluation.tasks:
        raise RunFileError("[evaluation] tasks: results cannot be evaluated: results.json is the file of all of them")
    return Settings(file.evaluation, file.evaluation.tasks, dict(file.env), warnings, run_file)


def refuse_strangers_program(run: RunView, settings: Settings) -> None:
    """Raise OpsctlError where others than who may decide what this account runs can decide what is started."""
    why = who_else_decides(run, settings)
    if why:
        raise OpsctlError(
            f"{settings.python} is not started: {why}; it would run as you. Evaluate a copy of the run file that "
            "only you can change, or have its owner do it"
        )


def who_else_decides(run: RunView, settings: Settings) -> str:
    """Return a clause with the users who could change what is run; empty if only users who may do so anyway."""
    try:
        why = _who_else(settings, None)
        group = deciding_group(run.paths) if why else None
        return why if group is None else _who_else(settings, group)
    except OSError as error:
        return file_problem(error)


def _who_else(settings: Settings, group: int | None) -> str:
    return next(filter(None, (who_else_can_write(path, group) for path in _what_decides(settings))), "")


def _what_decides(settings: Settings) -> Iterator[Path]:
    """Yield every file and folder that decides what is run."""
    program = Path(find_program(settings.python, os.environ) or settings.python)
    if program.exists():  # one that is not there starts nothing
        yield program
    if settings.run_file is not None:  # its variables load code too, whichever Python it is
        yield settings.run_file
    searched = settings.variables.get("PYTHONPATH")
    for entry in searched.split(os.pathsep) if searched else ():
        wanted = Path(entry or ".").absolute()
        folder = _what_is_there(wanted)
        yield folder
        yield from folder.iterdir() if folder == wanted and folder.is_dir() else ()
    for entry in settings.table.include:  # a task's description may name code beside it
        wanted = Path(entry).absolute()
        folder = _what_is_there(wanted)
        yield folder
        if folder == wanted:
            for above, folders, files in os.walk(folder):
                yield from (Path(above, name) for name in (*folders, *files))


def _what_is_there(path: Path) -> Path:
    """Return the path, or the existing folder in which it could be made."""
    return next(one for one in (path, *path.parents) if one.exists())
