"""Whether the environment that a run file names may be started by whoever looks at it: the one judgement of that."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from opsctl.core.errors import file_problem
from opsctl.core.files.trusted import who_else_can_write
from opsctl.run.config.schema import RunFile


def why_not_started(file: RunFile, run_file: Path, output: Path, is_for_own_job: bool = False) -> str:
    """Who else could have it run what they like, in a clause; empty where nobody could who may not do so anyway.

    file: expanded. What is started is the script, with the variables of `[env]`, which load code too. It runs as the
    caller, so that it has to be root's and the caller's alone; where their jobs run what the run's group decides, as
    those of the output folder's owner do and one that is about to be submitted (is_for_own_job), the group's too.
    """
    script = None if file.run.environment is None else Path(file.run.environment)
    try:
        decided_by = [path for path in (script, run_file if file.env else None) if path is not None and path.exists()]
        why = _who_else(decided_by, None)
        group = _group_of_the_jobs(file, output, is_for_own_job) if why else None
        return why if group is None else _who_else(decided_by, group)
    except OSError as error:
        return file_problem(error)


def _who_else(paths: Sequence[Path], group: int | None) -> str:
    return next(filter(None, (who_else_can_write(path, group) for path in paths)), "")


def _group_of_the_jobs(file: RunFile, output: Path, is_for_own_job: bool) -> int | None:
    """The group whose members decide what the caller's jobs of this run do; the folder's word, not the run file's."""
    if file.run.publish != "group":
        return None
    try:
        found = output.stat()
    except FileNotFoundError:
        return None  # nobody shares it yet
    is_shared = bool(found.st_mode & stat.S_IWGRP)
    return found.st_gid if is_shared and (is_for_own_job or found.st_uid == os.geteuid()) else None
