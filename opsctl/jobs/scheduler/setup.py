"""The cron folder itself: made, opened to its group, filled with what is shipped; jobs put in."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from opsctl.core.account import account_name
from opsctl.core.errors import OpsctlError
from opsctl.core.files.state_files import make_folder, write_atomically
from opsctl.core.files.trusted import names_of
from opsctl.core.shipped import cron_folder as shipped_jobs
from opsctl.jobs.scheduler.chain import start, stop
from opsctl.jobs.scheduler.context import SUFFIX, Cron, JobFile, own_directives
from opsctl.run.config.locate import CRON_FOLDER_VARIABLE
from opsctl.run.state.group_folder import CRON, open_to
from opsctl.run.state.register import cron_folder
from opsctl.run.state.scheduler import Via

#: How often, and with which pause in seconds, a folder that another process is making is tried.
_TRIES, _PAUSE_S = 10, 0.2


def prepare(cron: Cron) -> list[str]:
    """Make the cron folder, or let an older one be as the profile says; warnings.

    A fresh one gets the jobs that are shipped. Raises RunFileError, OpsctlError for another user's folder.
    """
    paths = cron.paths
    _refuse_a_strangers(cron)
    warnings = list(open_to(paths.folder, cron.table.group, CRON))
    is_fresh = not (paths.hourly.exists() or paths.daily.exists())
    for folder in (paths.hourly, paths.daily, paths.logs, paths.state, paths.text("x").parent):
        make_folder(paths.folder, folder)
    if is_fresh:
        for kind in ("hourly", "daily"):
            for source in sorted((shipped_jobs() / kind).glob(f"*{SUFFIX}")):
                add_job(cron, None, source.stem, False, None, True, False)  # another start may be at it
    return [*warnings, *_unseen(cron)]


def begin(cron: Cron, via: Via | None, period_s: int | None, take_over: bool, clock: Callable[[], float]) -> list[str]:
    """Prepare the folder and start the scheduler if it is not running; return lines about it, warnings first.

    Of two that make the folder at once, one may find what the other has made and not yet opened to the group: it tries
    again. Raises OpsctlError, OSError.
    """
    for tries_left in reversed(range(1 + _TRIES if cron.table.group else 1)):
        try:
            warnings, done = prepare(cron), start(cron, via, period_s, take_over, clock)
            break
        except PermissionError:
            if not tries_left:
                raise
            time.sleep(_PAUSE_S)
    news = "started" if done.is_new else "is alive"
    carrier = f"carried by {done.chain.carrier()}, a tick every {done.chain.period_s} s"
    group = cron.table.group if done.is_new else None
    runs_as = [f"what members of {group} put there runs as {account_name()}"] if group else []
    return [*warnings, f"cron {news}, {carrier}: {cron.paths.folder}", *runs_as, *done.notes]


def end(cron: Cron) -> list[str]:
    """Stop the scheduler of any owner; return lines about it. Raises OpsctlError, OSError."""
    found, notes = stop(cron)
    said = "cron was never started" if found is None else f"cron stopped by {found.stopped_by}: {cron.paths.folder}"
    return [said, *notes]


def add_job(
    cron: Cron, file: Path | None, shipped: str | None, daily: bool, name: str | None, replace: bool, dry_run: bool
) -> str:
    """Copy `file`, or the one that is shipped under that name, into the folder; the job's name.

    Raises OpsctlError for one that could not run, OSError.
    """
    if file is None:
        file, daily = _shipped(str(shipped), daily)
    own_directives(text := file.read_text())
    kind, folder = ("daily", cron.paths.daily) if daily else ("hourly", cron.paths.hourly)
    stem = (name or file.name).removesuffix(SUFFIX)
    job = JobFile(f"{kind}/{stem}", folder / f"{stem}{SUFFIX}")
    if job.name_problem or "/" in stem:
        raise OpsctlError(f"{stem!r} cannot be a job's name: {job.name_problem or 'it has a / in it'}")
    if not replace and job.path.name in names_of(cron.paths.folder, folder, 10_000):
        raise OpsctlError(f"there is a job {job.name} already: --replace, or --name it otherwise")
    if not dry_run:
        make_folder(cron.paths.folder, folder)
        write_atomically(cron.paths.folder, job.path, text)
    return job.name


def _shipped(name: str, daily: bool) -> tuple[Path, bool]:
    """Return (file, whether it is a daily job)."""
    for kind in ("hourly", "daily"):
        source = shipped_jobs() / kind / f"{name}{SUFFIX}"
        if source.is_file():
            return source, daily or kind == "daily"
    known = ", ".join(sorted(path.stem for path in shipped_jobs().glob(f"*/*{SUFFIX}")))
    raise OpsctlError(f"no job {name!r} comes with opsctl: {known}")


def _unseen(cron: Cron) -> list[str]:
    """Return how to let trainings and other commands find a scheduler whose folder only this command names."""
    folder, usual = cron.paths.folder, cron_folder(cron.environment)
    if folder == usual:
        return []
    return [
        f"trainings and other commands look for the scheduler in {usual}: to let them find this one, type "
        f'export {CRON_FOLDER_VARIABLE}={shlex.quote(str(folder))}, or write folder = "{folder}" under [cron] '
        "in your profile"
    ]


def _refuse_a_strangers(cron: Cron) -> None:
    """Refuse a folder whose jobs another account could change: they run as the caller."""
    try:
        found = cron.paths.folder.stat()
    except OSError:
        return
    if found.st_uid not in (0, os.geteuid()) and not cron.table.group:
        raise OpsctlError(
            f"{cron.paths.folder} is {account_name(found.st_uid)}'s, and its jobs would run as you: "
            'write group = "NAME" under [cron] in your profile if that is meant'
        )
