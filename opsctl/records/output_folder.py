"""The output folder of a run whose run file may be broken: stopping a training must not wait for somebody's edit."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from opsctl.errors import RunFileError
from opsctl.records.locate import locate_run_file
from opsctl.runs.load import LoadedRun, load_run_file
from opsctl.runs.paths import RunPaths
from opsctl.runs.schema import RunFile, RunTable, SlurmTable


def output_of(chosen: str | None) -> tuple[RunPaths, str | None]:
    """(paths, `[run] group`) of the run that `chosen` means, read with a blind eye on everything but [run] and [env].

    Raises UsageError for a run that is not there, RunFileError when even those cannot be read.
    """
    path = locate_run_file(chosen)
    try:
        loaded = load_run_file(path)
        return loaded.paths, loaded.file.run.group
    except RunFileError as error:
        found = _from_the_few_keys_needed(path)
        if found is None:
            raise error from None
        return found


def _from_the_few_keys_needed(path: Path) -> tuple[RunPaths, str | None] | None:
    try:
        written = tomllib.loads(path.read_text())
        run, env = _table(written, "run"), _table(written, "env")
        loaded = LoadedRun(
            file=RunFile(
                run=RunTable(name=str(run["name"]), output=str(run.get("output", "output"))),
                slurm=SlurmTable(nodes=1, gpus_per_node=1, time="1"),
                env={str(key): str(value) for key, value in env.items()},
            ),
            path=path.absolute(),
            sha256="",
            environment=dict(os.environ),
        )
        group = run.get("group")
        return loaded.paths, group if isinstance(group, str) else None
    except (OSError, ValueError, KeyError, RunFileError):
        return None


def _table(written: dict[str, Any], name: str) -> dict[str, Any]:
    value = written.get(name, {})
    return value if isinstance(value, dict) else {}
