"""`opsctl cron`: hourly and daily jobs where there is no crond, carried by Slurm's own queue."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import click

from opsctl.cli.selection import cluster_option, json_option
from opsctl.core.files import state_files
from opsctl.core.output import message, print_json, show, show_lines, show_text
from opsctl.core.timestamps import now
from opsctl.jobs.scheduler.context import Cron, find_job
from opsctl.jobs.scheduler.executing import execute, newest_run, output_of
from opsctl.jobs.scheduler.job_runs import start_now
from opsctl.jobs.scheduler.overview import look, printed_cron, status_lines
from opsctl.jobs.scheduler.setup import add_job, begin, end
from opsctl.jobs.scheduler.tick import Own, tick
from opsctl.jobs.tracked_job import own_job_id
from opsctl.run.config.profile import cron_table, jobs_table
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.register import cron_folder
from opsctl.run.state.scheduler import HOUR_S, SHORTEST_S, CronPaths
from opsctl.slurm.backends import client_for
from opsctl.slurm.durations import DURATION_RULE, parse_duration_s

#: Due times that `status` shows, unless told otherwise.
SHOWN = 8

folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="The cron folder [default: $OPSCTL_CRON_FOLDER, then [cron] folder of the profile, then your own].",
)
dry_run_option = click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")


@click.group()
def command() -> None:
    """Run checks, refills and backups every hour or day, without crontab.

    Once an hour the scheduler runs for a moment: a tick. It queues the next ticks, then submits the hourly jobs, and
    once a day the daily ones. The jobs are the *.slurm files in cron.hourly/ and cron.daily/ of the cron folder. They
    run as the user who started the scheduler.
    """


@command.command()
@folder_option
@cluster_option
@click.option(
    "--via",
    type=click.Choice(["slurm", "scrontab", "crontab"]),
    help="Program that starts the ticks [default: scrontab if Slurm enables it, else slurm].",
)
@click.option(
    "--tick",
    metavar="TIME",
    help="Time between two ticks, such as 20s or 5:00, to try the scheduler [default: an hour].",
)
@click.option("--take-over", is_flag=True, help="Take over the scheduler even if another user's is alive.")
@dry_run_option
@json_option(cron="opsctl.jobs.scheduler.overview.PrintedCron")
def start(
    folder: Path | None,
    cluster: str | None,
    via: str | None,
    tick: str | None,
    take_over: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Start the scheduler if it is not running, and print its owner. Takes over a scheduler that has died."""
    cron = _cron(folder, cluster)
    period_s = None if tick is None else _period(tick)
    if dry_run:
        _show(cron, as_json, SHOWN)
        return
    for line in begin(cron, via, period_s, take_over, time.time):  # type: ignore[arg-type]
        message(line)
    _show(cron, as_json, SHOWN, quiet=True)


@command.command()
@folder_option
@cluster_option
@dry_run_option
@json_option(cron="opsctl.jobs.scheduler.overview.PrintedCron")
def stop(folder: Path | None, cluster: str | None, dry_run: bool, as_json: bool) -> None:
    """Stop the scheduler of any owner. Running jobs continue."""
    cron = _cron(folder, cluster)
    if not dry_run:
        for line in end(cron):
            message(line)
    _show(cron, as_json, SHOWN, quiet=True)


@command.command()
@folder_option
@cluster_option
@click.option("-n", "--last", "count", default=SHOWN, show_default=True, help="Number of past ticks and runs to show.")
@json_option(cron="opsctl.jobs.scheduler.overview.PrintedCron")
@click.pass_context
def status(ctx: click.Context, folder: Path | None, cluster: str | None, count: int, as_json: bool) -> None:
    """Print the scheduler's owner, heartbeat, ticks and jobs.

    Exits 1 if the scheduler is dead or something cannot be checked.
    """
    ctx.exit(_show(_cron(folder, cluster), as_json, count))


@command.command()
@click.argument("file", metavar="[FILE]", type=click.Path(path_type=Path, exists=True, dir_okay=False), required=False)
@click.option("--daily", is_flag=True, help="Run the job once a day instead of at every tick.")
@click.option("--name", help="Name of the job [default: the file's name].")
@click.option(
    "--shipped",
    metavar="NAME",
    help="Add a job that opsctl ships, such as refill, instead of a file.",
)
@click.option("--replace", is_flag=True, help="Replace an existing job of that name.")
@folder_option
@dry_run_option
def add(
    file: Path | None,
    daily: bool,
    name: str | None,
    shipped: str | None,
    replace: bool,
    folder: Path | None,
    dry_run: bool,
) -> None:
    """Check a batch script and copy it into the cron folder."""
    if (file is None) == (shipped is None):
        raise click.UsageError("give a FILE, or --shipped NAME")
    show(add_job(_cron(folder, None), file, shipped, daily, name, replace, dry_run))


@command.command()
@click.argument("name")
@folder_option
@dry_run_option
def remove(name: str, folder: Path | None, dry_run: bool) -> None:
    """Remove a job from the cron folder; its records stay."""
    paths = _cron(folder, None).paths
    file = find_job(paths, name)
    if not dry_run:
        state_files.remove(paths.folder, file.path)
    show(file.name)


@command.command("run")
@click.argument("name")
@folder_option
@cluster_option
@dry_run_option
def run_now(name: str, folder: Path | None, cluster: str | None, dry_run: bool) -> None:
    """Submit a job now as yourself, and print its Slurm id."""
    cron = _cron(folder, cluster)
    file = find_job(cron.paths, name)
    if dry_run:
        message(f"would submit {file.path}")
    else:
        show(str(start_now(cron, file)))


@command.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Print new output until the run ends.")
@folder_option
def logs(name: str, follow: bool, folder: Path | None) -> None:
    """Print the output of the newest run of a job."""
    cron = _cron(folder, None)
    shown = 0
    while True:
        last = newest_run(cron, name)
        text = output_of(cron, last) or ""
        show_text(text[shown:])
        shown = len(text)
        if not follow or not last.is_open:
            break
        time.sleep(1)
    message(f"{last.job}: {last.state}" + (f" ({last.detail})" if last.detail else ""))


@command.command("tick", hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="The cron folder.")
@click.option("--token", required=True, help="Of its chain.")
@click.option("--period", type=int, required=True, help="Seconds.")
@click.option("--due", type=int, help="Seconds since the epoch; none in a crontab.")
def tick_now(folder: Path, token: str, period: int, due: int | None) -> int:
    """One tick; its job calls it."""
    cron = _cron(folder, None, patient=True)
    done = tick(cron, Own(token, period, due, own_job_id()), time.time)
    for line in (*([f"left: {done.left}"] if done.left else []), *done.problems):
        message(f"opsctl cron: {line}")
    return 1 if done.problems else 0


@command.command("exec", hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="The cron folder.")
@click.option("--run", "run_id", required=True, help="The run's id.")
@click.option("--digest", required=True, help="Of its program.")
def execute_now(folder: Path, run_id: str, digest: str) -> int:
    """One run of a job; its job calls it."""
    return execute(_cron(folder, None), run_id, digest, own_job_id(), socket.gethostname())


def _cron(folder: Path | None, cluster: str | None, patient: bool = False) -> Cron:
    where = choose_cluster(cluster, None)
    paths = CronPaths(folder.absolute() if folder else cron_folder())
    client = client_for(where, patient=patient)
    return Cron(paths, cron_table(), where, client, dict(os.environ), jobs_table().internet_partition)


def _period(text: str) -> int:
    """Seconds of `20s` or of a Slurm duration. Raises click.UsageError."""
    try:
        seconds = int(text[:-1]) if text.endswith("s") else parse_duration_s(text)
    except ValueError:
        seconds = 0
    if not SHORTEST_S <= seconds <= HOUR_S:
        raise click.UsageError(f"--tick {text}: expected {SHORTEST_S}s to an hour, such as 20s, or {DURATION_RULE}")
    return seconds


def _show(cron: Cron, as_json: bool, count: int, quiet: bool = False) -> int:
    """Print the state; return 1 where the scheduler is dead or unknown. quiet: print nothing without --json."""
    seen = look(cron, now(), slurm=not quiet or as_json)
    if as_json:
        print_json("cron", printed_cron(str(cron.paths.folder), seen, count))
    elif not quiet:
        show_lines(status_lines(str(cron.paths.folder), seen, count))
    return 1 if seen.state == "dead" or seen.problem else 0
