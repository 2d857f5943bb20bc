"""Reading a run file: TOML -> typed tables, with one line for whatever is wrong in it.

Precedence: `OPSCTL_*` > run file > `$XDG_CONFIG_HOME/opsctl/profile.toml` > `/etc/opsctl/profile.toml`.
A command's flags come last and win.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from opsctl.core.errors import RunFileError
from opsctl.run.config import expansion, values
from opsctl.run.config.paths import RunPaths
from opsctl.run.config.profile import profile
from opsctl.run.config.schema import RunFile, SlurmTable
from opsctl.run.config.toml_file import parse_toml, toml_bytes
from opsctl.run.config.toml_types import check_tables

#: What a group sets once for its cluster and a person may set in the environment: OPSCTL_PARTITION and so on.
ENVIRONMENT_KEYS = ("partition", "account", "qos", "constraint", "reservation", "gpu_type")


@dataclass(frozen=True)
class LoadedRun:
    """A valid run file as it was read, and where. `opsctl.run.config.expanded` makes of it what tasks train."""

    file: RunFile  # values with `${VAR}` as written
    path: Path  # absolute
    sha256: str  # of the run file's bytes
    environment: Mapping[str, str] = field(repr=False)  # what `${VAR}` means here

    @property
    def folder(self) -> Path:
        """The folder from which relative paths of the run file start."""
        return self.path.parent

    @property
    def paths(self) -> RunPaths:
        """The paths of the run. Raises RunFileError if `[run] output` names an unset variable."""
        output = expansion.expand_text(self.file.run.output, self.variables(), f"{self.path}: [run] output")
        values.check_output(self.path, output)
        return RunPaths(expansion.absolute(output, self.folder, self.environment))

    def variables(self) -> Mapping[str, str]:
        """Return the environment with the plain values of `[env]`, as the job will see it."""
        plain = {name: value for name, value in self.file.env.items() if "${" not in value}
        return {**self.environment, **plain}


def load_run_file(path: Path, environment: Mapping[str, str] = os.environ) -> LoadedRun:
    """Read and validate `path`. Values with `${VAR}` stay as written; see `expanded_file`. Raises RunFileError."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links away from the run's folder
    raw = toml_bytes(path)
    written = parse_toml(path, raw)
    check_tables(path, written)
    profiles = profile(environment)
    slurm = _merged_slurm(path, {**profiles.get("slurm", {}), **written.get("slurm", {})}, environment)
    shared = {name: {**profiles.get(name, {}), **written.get(name, {})} for name in ("gpu", "carbon")}
    try:
        file = msgspec.convert({**written, **shared, "slurm": slurm}, RunFile)
    except msgspec.ValidationError as error:  # what check_tables lets through must convert; say where if it does not
        raise RunFileError(f"{path}: {error}") from None
    values.check_values(path, msgspec.to_builtins(file))
    return LoadedRun(file=file, path=path, sha256=hashlib.sha256(raw).hexdigest(), environment=dict(environment))


def expanded_file(loaded: LoadedRun) -> RunFile:
    """Return the run file with `${VAR}`s replaced and absolute paths. Raises RunFileError for one not set."""
    return expansion.expand_file(loaded.file, loaded.path, loaded.variables(), loaded.environment)


def _merged_slurm(path: Path, written: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """`[slurm]` as it is `written`, under `OPSCTL_*`. Raises RunFileError when a required key is in none."""
    merged = dict(written)
    for key in ENVIRONMENT_KEYS:
        value = environment.get(f"OPSCTL_{key.upper()}")
        if value:
            merged[key] = value
    for one in msgspec.structs.fields(SlurmTable):
        if one.required and one.name not in merged:
            raise RunFileError(f"{path}: [slurm] {one.name} is missing")
    return merged
