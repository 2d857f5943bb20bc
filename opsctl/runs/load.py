"""Reading a run file: TOML -> typed tables, with one line for whatever is wrong in it.

Precedence: `OPSCTL_*` > run file > `$XDG_CONFIG_HOME/opsctl/profile.toml` > `/etc/opsctl/profile.toml`.
A command's flags come last and win.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from opsctl.errors import RunFileError
from opsctl.output import printable
from opsctl.runs import expansion, values
from opsctl.runs.paths import RunPaths
from opsctl.runs.schema import ArrayTable, ExpectTable, RunFile, RunTable, SlurmTable
from opsctl.runs.shape import check_tables

SYSTEM_PROFILE = Path("/etc/opsctl/profile.toml")
#: More than any run file has.
LARGEST_BYTES = 4 << 20
#: What a group sets once for its cluster and a person may set in the environment: OPSCTL_PARTITION and so on.
ENVIRONMENT_KEYS = ("partition", "account", "qos", "constraint", "reservation", "gpu_type")


@dataclass(frozen=True)
class LoadedRun:
    """A valid run file as it was read, and where. `opsctl.runs.expanded` makes of it what tasks train."""

    file: RunFile  # values with `${VAR}` as written
    path: Path  # absolute
    sha256: str  # of the run file's bytes
    environment: Mapping[str, str] = field(repr=False)  # what `${VAR}` means here

    @property
    def folder(self) -> Path:
        """Where relative paths of the run file start."""
        return self.path.parent

    @property
    def paths(self) -> RunPaths:
        """Where the run keeps its things. Raises RunFileError when `[run] output` names a variable that is not set."""
        output = expansion.expand_text(self.file.run.output, self.variables(), f"{self.path}: [run] output")
        values.check_output(self.path, output)
        return RunPaths(expansion.absolute(output, self.folder, self.environment))

    def variables(self) -> Mapping[str, str]:
        """The environment with plain values of `[env]` on top: those are what the job will see."""
        plain = {name: value for name, value in self.file.env.items() if "${" not in value}
        return {**self.environment, **plain}


def load_run_file(path: Path, environment: Mapping[str, str] = os.environ) -> LoadedRun:
    """Read and validate `path`. Values with `${VAR}` stay as written; see `expanded_file`. Raises RunFileError."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links away from the run's folder
    raw = _read(path)
    written = _parse(path, raw)
    check_tables(path, written)
    slurm = _merged_slurm(path, written.get("slurm", {}), environment)
    try:
        file = RunFile(
            run=msgspec.convert(written["run"], RunTable),
            slurm=msgspec.convert(slurm, SlurmTable),
            array=msgspec.convert(written.get("array", {}), ArrayTable),
            trainer=written.get("trainer", {}),
            data=written.get("data", {}),
            checkpoints=written.get("checkpoints", {}),
            expect=msgspec.convert(written.get("expect", {}), ExpectTable),
            env=written.get("env", {}),
        )
    except msgspec.ValidationError as error:  # what check_tables lets through must convert; say where if it does not
        raise RunFileError(f"{path}: {error}") from None
    values.check_values(path, file)
    return LoadedRun(file=file, path=path, sha256=hashlib.sha256(raw).hexdigest(), environment=dict(environment))


def expanded_file(loaded: LoadedRun) -> RunFile:
    """The run file with every `${VAR}` replaced and paths made absolute from its folder.

    Variables come from `[env]`'s plain values, then from the environment given at loading.
    Raises RunFileError for one not set.
    """
    return expansion.expand_file(loaded.file, loaded.path, loaded.variables(), loaded.environment)


def _read(path: Path) -> bytes:
    try:
        if path.is_dir():
            raise RunFileError(f"{path}: is a folder, not a run file")
        with path.open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunFileError(f"{path}: cannot read the run file: {reason}") from None
    if len(raw) > LARGEST_BYTES:
        raise RunFileError(f"{path}: larger than any run file ({LARGEST_BYTES} bytes)")
    return raw


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    """The tables of a TOML file. Raises RunFileError with line and column."""
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RunFileError(f"{path}: line {line}: not UTF-8 text (byte 0x{raw[error.start]:02x})") from None
    except tomllib.TOMLDecodeError as error:
        raise RunFileError(f"{path}: not TOML: {printable(str(error))}") from None
    except (ValueError, RecursionError) as error:
        raise RunFileError(f"{path}: not TOML: {printable(str(error))}") from None


def _merged_slurm(path: Path, from_run: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """`[slurm]` of the run over the profiles', under `OPSCTL_*`. Raises RunFileError when a required key is in none."""
    merged: dict[str, Any] = {}
    for profile in (SYSTEM_PROFILE, _user_profile(environment)):
        if profile is not None and profile.is_file():
            written = _parse(profile, _read(profile))
            check_tables(profile, written, profile=True)
            merged.update(written.get("slurm", {}))
    merged.update(from_run)
    for key in ENVIRONMENT_KEYS:
        value = environment.get(f"OPSCTL_{key.upper()}")
        if value:
            merged[key] = value
    for one in msgspec.structs.fields(SlurmTable):
        if one.required and one.name not in merged:
            raise RunFileError(f"{path}: [slurm] {one.name} is missing")
    return merged


def _user_profile(environment: Mapping[str, str]) -> Path | None:
    base = environment.get("XDG_CONFIG_HOME")
    if base:
        return Path(base) / "opsctl" / "profile.toml"
    home = environment.get("HOME")
    return Path(home) / ".config" / "opsctl" / "profile.toml" if home else None
