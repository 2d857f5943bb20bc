"""`opsctl report`: a run's page, one HTML file for those who never log in."""

from __future__ import annotations

import os
from pathlib import Path

import click

from opsctl.cli.progress import reading_bar
from opsctl.cli.selection import all_runs_option, cluster_option, each_run
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.output import message, show
from opsctl.core.timestamps import iso, now
from opsctl.core.units import bytes_words
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.run_view import RunView, view
from opsctl.slurm.cache import cached_client
from opsctl.transfer.hub.settings import hub_settings
from opsctl.transfer.hub.sync import sync_run
from opsctl.ui.report.gather import known_of, known_of_log
from opsctl.ui.report.html_page import MOST_POINTS, PageData, page_html, page_run, write_page
from opsctl.ui.report.log_source import LogSource, log_named, log_of_run


@click.command()
@click.option(
    "--run", "runs", metavar="RUN", multiple=True, help="The run; repeat it to compare several [default: ./run.toml]."
)
@click.option(
    "--log",
    "logs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="A log of any known training program, without a run (repeatable).",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Path of the page [default: report/index.html of the run's output folder; with --log ./report.html].",
)
@click.option("--publish", is_flag=True, help="Send the page to the run's [hub].")
@all_runs_option
@cluster_option
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    logs: tuple[Path, ...],
    output: Path | None,
    publish: bool,
    all_runs: bool,
    cluster: str | None,
) -> None:
    """Write one HTML page about a run: curves, events, attempts, nodes, goodput, carbon.

    The page is one file that opens from disk and loads nothing from the network. It is made from logs and records.
    """
    if all_runs and (runs or logs or output):
        raise click.UsageError("--all-runs writes every run's own page: give no --run, --log or --output")
    if publish and (logs or len(runs) > 1 or output):
        raise click.UsageError("--publish sends a run's own page: give no --log or --output, and one --run")
    if all_runs:
        ctx.exit(_all_runs(cluster, publish))
    views = _write(runs, logs, output, cluster)
    if publish:
        ctx.exit(_publish(views[0]))


def _write(runs: tuple[str, ...], logs: tuple[Path, ...], output: Path | None, cluster: str | None) -> list[RunView]:
    """Read the logs, write one page of all of them and print where. Return the runs."""
    views = [view(one) for one in (runs or (() if logs else (None,)))]
    sources: list[tuple[RunView | None, LogSource]] = [
        *((one, log_of_run(one.paths)) for one in views),
        *((None, log_named(path)) for path in logs),
    ]
    names = _names([log.path if run is None else Path(run.table.name) for run, log in sources])
    shown = []
    for (run, log), name in zip(sources, names, strict=True):
        try:
            with reading_bar(log.path) as bar:
                log.read(bar)
        except FileNotFoundError:
            if run is None:
                raise OpsctlError(f"{log.path}: no such log") from None
        if run is None:
            known = known_of_log(log)
        else:
            known = known_of(run, log, cached_client(choose_cluster(cluster, run.paths), False))
        shown.append(page_run(name, _in_text(log.path), log.course, known, MOST_POINTS // len(sources)))
    text = page_html(PageData(title=" and ".join(one.name for one in shown), made_at=iso(now()), runs=shown))
    own = views[0].paths if len(sources) == 1 and views else None
    path = write_page(text, output, own, [log.path for _, log in sources])
    show(f"{path}: {bytes_words(len(text.encode()))}")
    return views


def _names(paths: list[Path]) -> list[str]:
    """As short as tells them apart: the last parts of their names."""
    for parts in range(1, 1 + max(len(path.parts) for path in paths)):
        names = [_in_text("/".join(path.parts[-parts:])) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{_in_text(path)} ({number})" for number, path in enumerate(paths, 1)]


def _in_text(name: Path | str) -> str:
    """Return a file's name as UTF-8, since it may have any bytes."""
    return os.fsencode(name).decode(errors="replace")


def _publish(run: RunView) -> int:
    """Send the page; 1 where it could not be."""
    done = sync_run(run, ("report",), False, message)
    for line in (*done.notes, *done.left):
        message(f"{done.run}: {line}")
    show(done.line)
    return 1 if done.left else 0


def _all_runs(cluster: str | None, publish: bool) -> int:
    """Every run's own page, of those that have a log; with `publish` those with a [hub]. 1 where one failed."""
    failed: list[str] = []

    def is_wanted(run: RunView) -> bool:
        return run.paths.main_log.exists() and (not publish or hub_settings(run) is not None)

    for name, run in each_run(is_wanted, lambda name, _: failed.append(name)):
        try:
            where = str(run.loaded.path) if run.loaded is not None else None
            if where is None:
                raise OpsctlError(run.problem)
            _write((where,), (), None, cluster)
            if publish and _publish(run):
                failed.append(name)
        except OpsctlError as error:
            message(f"{name}: left alone: {error}")
            failed.append(name)
        except OSError as error:
            message(f"{name}: left alone: {file_problem(error, run.paths.output)}")
            failed.append(name)
        except Exception as error:  # whatever one log holds, the others have their pages
            message(f"{name}: left alone: {type(error).__name__}: {error}")
            failed.append(name)
    return 1 if failed else 0
