"""The pseudo-cron that a process works for: its folder, what the profile says of it, and the Slurm that it uses."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.account import account_home
from opsctl.core.files.trusted import names_of, read_program
from opsctl.run.config.schema import CronTable
from opsctl.run.config.values import RUN_NAME
from opsctl.run.render.scheduler import Setting
from opsctl.run.render.templates import exports_of
from opsctl.run.state.scheduler import CronPaths
from opsctl.slurm.client import SlurmClient
from opsctl.slurm.cluster import Cluster

SUFFIX = ".slurm"
#: Files in one folder of jobs beyond which something else than jobs was put there.
MOST_FILES = 200


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
        """What the scripts need."""
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
    """The jobs of one folder, by name. Raises OSError, Untrusted, where it cannot be read or is none of ours."""
    folder, kind = (paths.daily, "daily") if daily else (paths.hourly, "hourly")
    names = [name for name in names_of(paths.folder, folder, MOST_FILES) if name.endswith(SUFFIX)]
    return [JobFile(f"{kind}/{_text(name.removesuffix(SUFFIX))}", folder / name) for name in names if name[0] != "."]


def text_of(cron: Cron, file: JobFile) -> str:
    """The job's program, read once. Raises OSError: Untrusted, FileNotFoundError."""
    return read_program(cron.paths.folder, file.path, cron.table.group)


def _text(name: str) -> str:
    """A file's name as text that a record can hold."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
