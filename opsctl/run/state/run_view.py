"""The run for commands that read or stop it, also while its run file is being edited."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.core.errors import OpsctlError, RunFileError
from opsctl.run.config.load import LoadedRun, load_run_file
from opsctl.run.config.locate import locate_run_file
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.schema import RunFile, RunTable, SlurmTable
from opsctl.run.config.toml_file import LARGEST_BYTES
from opsctl.run.state.group_folder import refuse_who_cannot_enter
from trainer.recipe.options import Options, OptionsError

if TYPE_CHECKING:
    from opsctl.run.state.revisions import Revision


@dataclass(frozen=True)
class RunView:
    """The run, from its run file as far as that can be read."""

    table: RunTable  # [run]
    paths: RunPaths
    loaded: LoadedRun | None  # None: the run file is broken
    problem: str = ""  # what is wrong with it then

    @cached_property
    def revision(self) -> Revision | None:
        """The newest, damaged or not; None before the first submit. Raises OpsctlError where that cannot be seen."""
        from opsctl.run.state.revisions import newest  # a glance needs none

        return newest(self.paths)

    @property
    def file(self) -> RunFile | None:
        """The run file; where it is broken or closed to the reader, what was published of it; None without both."""
        if self.loaded is not None:
            return self.loaded.file
        try:
            return self.revision.file if self.revision and not self.revision.damage else None
        except OpsctlError:
            return None

    @property
    def options(self) -> Options | None:
        """The trainer's options as published, None if unknown or unparsable. Raises OpsctlError if damaged."""
        try:
            return self.revision.options() if self.revision else None
        except OptionsError:
            return None


def glance(chosen: str | None, asks_first: bool = False) -> RunView:
    """Return the run that `chosen` means, from [run] and [env] alone. Raises UsageError, RunFileError, OpsctlError.
    asks_first: check in another process that the output folder's file system answers.
    """
    path = locate_run_file(chosen)
    try:
        loaded = load_run_file(path)
        run = RunView(loaded.file.run, loaded.paths, loaded)
    except RunFileError as error:
        found = _from_the_few_keys_needed(path)
        if found is None:
            raise
        run = RunView(found.file.run, found.paths, None, str(error))
    if asks_first:
        from opsctl.core.dirwalk.file_system import refuse_what_hangs  # no other glance starts programs

        refuse_what_hangs(run.paths.output)
    refuse_who_cannot_enter(run.paths)
    return run


def view(chosen: str | None, asks_first: bool = False) -> RunView:
    """Return the run of `chosen`; if its file is broken, [run] as published. Raises UsageError, RunFileError."""
    run = glance(chosen, asks_first)
    if run.loaded is not None:
        return run
    if run.revision is None or run.revision.damage:
        raise RunFileError(run.problem)
    return replace(run, table=run.revision.file.run)


def view_known(run_file: Path, output: Path | None) -> RunView:
    """Return a listed run by its run file, or by its output folder as published. Raises OpsctlError, OSError."""
    if run_file.is_file():
        try:
            return view(str(run_file))
        except OpsctlError:
            if output is None or os.access(run_file, os.R_OK):
                raise
    problem = f"{run_file}: cannot read the run file"
    if output is None:
        raise RunFileError(problem)
    paths = RunPaths(output)
    refuse_who_cannot_enter(paths)
    by_folder = RunView(RunTable(name=""), paths, None, problem)
    if by_folder.revision is None or by_folder.revision.damage:
        raise RunFileError(by_folder.revision.damage if by_folder.revision else problem)
    return replace(by_folder, table=by_folder.revision.file.run)


def _from_the_few_keys_needed(path: Path) -> LoadedRun | None:
    """Return the run with [run] and [env] of its file; None if not even its output folder is known."""
    try:
        with path.open("rb") as file:
            written = tomllib.loads(file.read(LARGEST_BYTES).decode())
        run, env = _table(written, "run"), _table(written, "env")
        group = run.get("group")
        table = RunTable(
            name=str(run["name"]),
            output=str(run.get("output", "output")),
            group=group if isinstance(group, str) else None,
        )
        loaded = LoadedRun(
            file=RunFile(
                run=table,
                slurm=SlurmTable(nodes=1, gpus_per_node=1, time="1"),
                env={str(key): str(value) for key, value in env.items()},
            ),
            path=path.absolute(),
            sha256="",
            environment=dict(os.environ),
        )
        loaded.paths  # noqa: B018 - raises where [run] output cannot be one
    except (OSError, ValueError, KeyError, RunFileError):
        return None
    return loaded


def _table(written: dict[str, Any], name: str) -> dict[str, Any]:
    value = written.get(name, {})
    return value if isinstance(value, dict) else {}
