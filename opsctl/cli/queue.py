"""`opsctl queue`: the group's jobs, the run's own marked. One squeue, and a look whether others' jobs are hidden."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from opsctl.cli.selection import cluster_option, fresh_option, json_option, run_argument
from opsctl.core.account import account_name
from opsctl.core.output import message, print_json, show_lines
from opsctl.core.timestamps import now
from opsctl.monitoring.overview import printed_job
from opsctl.monitoring.snapshot import queue_order
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE, sees_others
from opsctl.run.config.locate import RUN_FILE_NAME
from opsctl.run.state.chains import Recorded, recorded
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView, view
from opsctl.slurm.cache import cached_client
from opsctl.ui.status.queue import interested, queue_table
from opsctl.ui.status.text import answer_age


@click.command()
@run_argument
@cluster_option
@json_option(jobs="list[opsctl.monitoring.overview.PrintedJob]")
@fresh_option
def command(run: str | None, cluster: str | None, as_json: bool, fresh: bool) -> None:
    """List the jobs of the run's group, and mark those of this run with *.

    Without `[run] group`, it lists your jobs and every user's jobs of this run. Start times are Slurm's estimates.
    """
    seen = _run_if_any(run)
    paths = seen.paths if seen else None
    known = recorded(paths) if paths else Recorded()
    users = interested(seen.table.group if seen else None)
    slurm = cached_client(choose_cluster(cluster, paths), fresh or as_json)
    jobs = slurm.jobs()
    others = (users | {chain.user for chain in known.chains}) - {account_name()}
    hidden = bool(others) and not sees_others(jobs) and slurm.hides_others_jobs()
    own = {job.job_id for job in known.own(jobs)}
    rows = [(job, job.job_id in own) for job in sorted(jobs, key=queue_order) if job.job_id in own or job.user in users]
    if as_json:
        print_json("jobs", [printed_job(job, own) for job, own in rows])
    elif rows:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        show_lines(queue_table(rows, width, now()))
    elif not hidden:
        message(f"no jobs of {', '.join(sorted(users))} in the queue")
    if hidden:
        message(f"{CANNOT_SEE}: {'only your jobs are listed' if rows else 'you have no job in the queue'}")
    if not as_json and (age := answer_age(getattr(slurm, "queue_age_s", 0.0))):
        show_lines([age])


def _run_if_any(chosen: str | None) -> RunView | None:
    """Return the chosen run; None if none is given and the folder has none either."""
    return view(chosen) if chosen or os.environ.get("OPSCTL_RUN") or Path(RUN_FILE_NAME).is_file() else None
