"""The scripts of the pseudo-cron: a tick's, a job's, and a crontab line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.run.config.schema import CronTable
from opsctl.run.render.templates import cluster_lines, render_template
from opsctl.slurm.cluster import Cluster

TICK_NAME = "opsctl-cron"
_WORK_FOLDER = "/"


@dataclass(frozen=True)
class Setting:
    """The settings for the ticks and jobs of one cron folder."""

    folder: str  # absolute
    token: str  # of the chain
    period_s: int
    table: CronTable
    cluster: Cluster
    python: str  # absolute path of the interpreter that has opsctl
    exports: tuple[tuple[str, str], ...] = ()  # see `templates.exports_of`


def tick_script(setting: Setting, due: int, comment: str) -> str:
    """Return the batch script of the tick at `due`, seconds since the epoch."""
    directives = [
        ("job-name", TICK_NAME),
        ("comment", comment),
        *_of_profile(setting.table),
        ("nodes", "1"),
        ("ntasks", "1"),
        ("cpus-per-task", "1"),
        ("time", setting.table.time),
        ("begin", f"uts{due}"),
        *_of_ours(),
    ]
    return render_template(
        "cron-tick.sh.j2",
        directives=directives,
        exports=setting.exports,
        cluster=cluster_lines(setting.cluster),
        python=setting.python,
        folder=setting.folder,
        token=setting.token,
        period_s=setting.period_s,
        due=due,
    )


def job_script(setting: Setting, name: str, own: Mapping[str, str | None], comment: str, run: str, digest: str) -> str:
    """Return the batch script of one run of the job `name`. own: options in the job's file."""
    given = [(option, value) for option, value in _of_profile(setting.table) if option not in own]
    one_cpu = [("nodes", "1"), ("ntasks", "1"), ("cpus-per-task", "1")]
    job_name, _ = name_and_folder(name, own)
    directives = [
        *([] if "job-name" in own else [("job-name", job_name)]),
        ("comment", comment),
        *given,
        *(one_cpu if not own.keys() & {"nodes", "ntasks", "cpus-per-task", "ntasks-per-node"} else []),
        *([] if "time" in own else [("time", setting.table.time)]),
        *own.items(),
        *((option, value) for option, value in _of_ours() if option not in own),
    ]
    return render_template(
        "cron-job.sh.j2",
        directives=directives,
        exports=setting.exports,
        cluster=cluster_lines(setting.cluster),
        python=setting.python,
        bin_folder=str(Path(setting.python).parent),
        folder=setting.folder,
        run=run,
        digest=digest,
    )


def name_and_folder(name: str, own: Mapping[str, str | None]) -> tuple[str, str]:
    """Return (name, work folder) of the Slurm job that runs the job `name`. own: options in the job's file."""
    return own.get("job-name") or f"cron-{name.rpartition('/')[2]}", own.get("chdir") or _WORK_FOLDER


def crontab_line(setting: Setting, schedule: str) -> str:
    """Return a crontab or scrontab line that runs a tick at `schedule`. Raises OpsctlError if it fits in no line."""
    cluster = setting.cluster.additions({"PATH": "/usr/local/bin:/usr/bin:/bin"})
    line = render_template(
        "cron-line.j2",
        schedule=schedule,
        exports=[*setting.exports, *cluster.items()],
        python=setting.python,
        folder=setting.folder,
        token=setting.token,
        period_s=setting.period_s,
    ).rstrip("\n")
    if "%" in line:
        raise OpsctlError(f"a crontab line cannot contain %: {line}. Rename the folder, or use --via slurm")
    return line


def _of_profile(table: CronTable) -> list[tuple[str, str | None]]:
    options = {
        "partition": table.partition,
        "account": table.account,
        "qos": table.qos,
        "constraint": table.constraint,
        "nice": str(table.nice) if table.nice else None,
    }
    return [(option, value) for option, value in options.items() if value is not None]


def _of_ours() -> list[tuple[str, str | None]]:
    # A job restarted under the same id would be two runs with one record.
    return [("no-requeue", None), ("chdir", _WORK_FOLDER), ("output", "/dev/null"), ("export", "NONE")]
