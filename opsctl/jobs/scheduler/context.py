"""The pseudo-cron that a process works for: its folder, what the profile says of it, and the Slurm that it uses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_home
from opsctl.core.errors import OpsctlError
from opsctl.core.files.trusted import names_of, read_program
from opsctl.run.config.schema import CronTable
from opsctl.run.config.values import RUN_NAME
from opsctl.run.render.scheduler import Setting
from opsctl.run.render.templates import exports_of
from opsctl.run.state.scheduler import CronPaths
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster
from opsctl.slurm.sbatch_lines import WITHOUT_VALUE, directives, header

SUFFIX = ".slurm"
#: Files in one folder of jobs beyond which something else than jobs was put there.
MOST_FILES = 200
#: What a job file may say itself; all else is refused by name.
ALLOWED = frozenset(
    (
        *("account", "chdir", "constraint", "core-spec", "cpus-per-task", "error", "exclude", "exclusive", "hint"),
        *("input", "job-name", "licenses", "mail-type", "mail-user", "mem", "mem-per-cpu", "nice", "nodelist"),
        *("nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "oversubscribe", "partition", "qos"),
        *("reservation", "threads-per-core", "time", "time-min", "tmp"),
    )
)
#: What options begin with that ask for GPUs; sbatch takes abbreviations too.
_FOR_GPUS = ("gpu", "gre", "tres")
#: A comment line of ours with what a job needs beside Slurm's options.
_OURS = "#OPSCTL"
_INTERNET = "internet"

Directives = dict[str, str | None]


@dataclass(frozen=True)
class Cron:
    """One cron folder, for who carries it or asks it for something."""

    paths: CronPaths
    table: CronTable  # [cron] of this account's own profile, which says whose programs may run as it
    cluster: Cluster
    client: SlurmClient
    environment: Mapping[str, str]
    internet_partition: str | None = None  # of jobs that say that they need the internet

    def setting(self, token: str, period_s: int) -> Setting:
        """Return the settings that the scripts need."""
        return Setting(
            folder=str(self.paths.folder),
            token=token,
            period_s=period_s,
            table=self.table,
            cluster=self.cluster,
            python=sys.executable,
            exports=exports_of(self.environment, account_home(), "OPSCTL_CLUSTER"),
        )


@dataclass(frozen=True)
class JobFile:
    """A `*.slurm` file in one of the folders of jobs."""

    name: str  # "hourly/refill"
    path: Path

    @property
    def name_problem(self) -> str:
        """Why its name cannot be a job's; empty where it can."""
        return "" if RUN_NAME.fullmatch(self.path.name.removesuffix(SUFFIX)) else "rename it: letters, digits, . _ -"


def job_files(paths: CronPaths, daily: bool) -> list[JobFile]:
    """Return the jobs of one folder, by name. Raises OSError and Untrusted if it cannot be read or is not trusted."""
    folder, kind = (paths.daily, "daily") if daily else (paths.hourly, "hourly")
    names = [name for name in names_of(paths.folder, folder, MOST_FILES) if name.endswith(SUFFIX)]
    return [JobFile(f"{kind}/{_text(name.removesuffix(SUFFIX))}", folder / name) for name in names if name[0] != "."]


def find_job(paths: CronPaths, name: str) -> JobFile:
    """Return the job of that name, `refill` or `hourly/refill`. Raises OpsctlError if it is not exactly one."""
    files = [*job_files(paths, False), *job_files(paths, True)]
    found = [file for file in files if name in (file.name, file.name.partition("/")[2])]
    if len(found) == 1:
        return found[0]
    names = ", ".join(file.name for file in found or files) or "none"
    raise OpsctlError(f"{'two jobs' if found else 'no job'} {name!r} in {paths.folder}: {names}")


def text_of(cron: Cron, file: JobFile) -> str:
    """Read the job's program once. Raises OSError: Untrusted, FileNotFoundError."""
    return read_program(cron.paths.folder, file.path, cron.table.group)


def _text(name: str) -> str:
    """Return a file's name as text that a record can hold."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def own_directives(text: str) -> Directives:
    """Option -> value (None for one without) of the file's `#SBATCH` lines, as sbatch reads them.

    Raises OpsctlError for an option that is not a cron job's to set, GPUs among them, and for a file without `#!`.
    """
    lines = text.splitlines()
    if not lines or not lines[0].startswith("#!") or not lines[0][2:].strip():
        raise OpsctlError("the first line is not #! and the program that runs it, like #!/bin/bash")
    found: Directives = {}
    try:
        for one in directives(text):
            _check(one.name, one.value)
            found[one.name] = one.value
    except ValueError as error:
        raise OpsctlError(str(error)) from None
    return found


def needs_internet(text: str) -> bool:
    """Return whether `#OPSCTL internet` is before the first command. Raises OpsctlError for any other word."""
    words = [word for _, line in header(text) if line.startswith(_OURS) for word in line.removeprefix(_OURS).split()]
    unknown = next((word for word in words if word != _INTERNET), None)
    if unknown is not None:
        raise OpsctlError(f"{_OURS} {unknown}: the only allowed word is {_INTERNET}")
    return bool(words)


def interpreter_of(text: str) -> list[str]:
    """Return the command of the first line: a program and at most one argument, as the kernel reads it."""
    return text.splitlines()[0][2:].strip().split(None, 1)


def _check(name: str, value: str | None) -> None:
    shown = name if name.startswith("-") else f"--{name}"
    if name.startswith(_FOR_GPUS):
        raise OpsctlError(f"#SBATCH {shown}{'=' + value if value else ''}: a cron job gets no GPU: remove this line")
    if name not in ALLOWED:
        raise OpsctlError(f"#SBATCH {shown}: a cron job may not set it; allowed are {', '.join(sorted(ALLOWED))}")
    if value is None and name not in WITHOUT_VALUE:
        raise OpsctlError(f"#SBATCH {shown}: has no value")
    if value is not None and not value.isprintable():
        raise OpsctlError(f"#SBATCH {shown}: has a control character in its value")
