"""The run as those who only look need it: also while its run file is in the middle of somebody's edit."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.errors import RunFileError
from opsctl.records.locate import locate_run_file
from opsctl.records.output_folder import output_of
from opsctl.records.revisions import Revision, newest
from opsctl.runs.load import LoadedRun, load_run_file
from opsctl.runs.paths import RunPaths
from opsctl.runs.schema import RunTable
from trainer.recipe.options import Options, OptionsError


@dataclass(frozen=True)
class RunView:
    """A run's identity, from its run file, or from the newest revision while the run file cannot be read."""

    table: RunTable  # [run]
    paths: RunPaths
    revision: Revision | None
    loaded: LoadedRun | None  # None: the run file is broken
    problem: str = ""  # what is wrong with it then

    @property
    def options(self) -> Options | None:
        """The trainer's, as published; None before that, or when another release published what this one cannot parse.

        Raises OpsctlError when the revision's files are damaged.
        """
        try:
            return self.revision.options() if self.revision else None
        except OptionsError:
            return None


def view(chosen: str | None) -> RunView:
    """The run that `chosen` means. A broken run file is an error only where nothing was ever published from it.

    Raises UsageError for a run that is not there, RunFileError as said.
    """
    path = locate_run_file(chosen)
    try:
        loaded = load_run_file(path)
        return RunView(loaded.file.run, loaded.paths, newest(loaded.paths), loaded)
    except RunFileError as error:
        paths, _ = output_of(str(path))
        revision = newest(paths)
        if revision is None:
            raise
        return RunView(revision.file.run, paths, revision, None, str(error))
