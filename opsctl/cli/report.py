"""`opsctl report`: a run's page, one HTML file for those who never log in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from opsctl.cli.selection import all_runs_option, cluster_option
from opsctl.core.units import bytes_words

if TYPE_CHECKING:
    from opsctl.run.state.run_view import RunView
    from opsctl.ui.report.html_page import PageRun
    from opsctl.ui.report.log_source import LogSource

#: Seconds between two writings of a page that is followed, unless told otherwise.
EVERY_S = 60
#: While the log stands still the page is written again all the same, after so many looks: the queue may have moved.
_STILL_LOOKS = 10


@click.command()
@click.option(
    "--run", "runs", metavar="RUN", multiple=True, help="The run; several are compared [default: ./run.toml]."
)
@click.option(
    "--log",
    "logs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="A log of Megatron's kind or torchtitan's; needs no run. Several are compared.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where the page goes [default: report/index.html of the run's output folder; of logs report.html here].",
)
@click.option("--follow", is_flag=True, help="Write it again as the training goes on, until Ctrl-C.")
@click.option("--every", type=click.IntRange(5, 86_400), default=EVERY_S, metavar="S", help="Seconds between those.")
@click.option("--publish", is_flag=True, help="Send it to the run's [hub].")
@all_runs_option
@cluster_option
@click.pass_context
def command(
    ctx: click.Context,
    runs: tuple[str, ...],
    logs: tuple[Path, ...],
    output: Path | None,
    follow: bool,
    every: int,
    publish: bool,
    all_runs: bool,
    cluster: str | None,
) -> None:
    """Write a run's page: curves, what happened, attempts, nodes, goodput, carbon, the plan.

    One file that opens from disk and fetches nothing, made of logs and records alone. --log needs no run and reads any
    Megatron's log, Argonne's, torchtitan's.
    """
    _refuse(runs, logs, output, follow, publish, all_runs)
    if all_runs:
        ctx.exit(_all_runs(cluster, publish))
    writing = _Writing(runs, logs, output, every if follow else 0, cluster)
    if follow:
        ctx.exit(_follow(writing, every))
    writing.write()
    if publish:
        ctx.exit(_publish(writing.views[0]))


def _refuse(
    runs: tuple[str, ...], logs: tuple[Path, ...], output: Path | None, follow: bool, publish: bool, all_runs: bool
) -> None:
    if all_runs and (runs or logs or output or follow):
        raise click.UsageError("--all-runs writes every run's own page: give no --run, --log, --output or --follow")
    if publish and (logs or len(runs) > 1 or output):
        raise click.UsageError("--publish sends a run's own page: give no --log or --output, and one --run")
    if publish and follow:
        raise click.UsageError("--publish sends it once, the cron's report-publish every hour: give no --follow")


class _Writing:
    """One page, once or again and again."""

    def __init__(
        self, runs: tuple[str, ...], logs: tuple[Path, ...], output: Path | None, follow_s: int, cluster: str | None
    ) -> None:
        from opsctl.run.state.run_view import view
        from opsctl.ui.report.log_source import log_named, log_of_run

        self.follow_s, self.cluster = follow_s, cluster
        self.views = [view(one) for one in (runs or (() if logs else (None,)))]
        self.sources: list[tuple[RunView | None, LogSource]] = [
            *((one, log_of_run(one.paths)) for one in self.views),
            *((None, log_named(path)) for path in logs),
        ]
        self.output = output
        self.has_written = False

    def look(self) -> bool:
        """Read the logs on; whether there was anything new in one of them."""
        from opsctl.cli.progress import reading_bar
        from opsctl.core.errors import OpsctlError

        news = []
        for run, log in self.sources:
            try:
                with reading_bar(log.path) as bar:
                    news.append(log.look(bar))
            except FileNotFoundError:
                if run is None:
                    raise OpsctlError(f"{log.path}: no such log") from None
            if not self.follow_s:
                log.finish()
        return any(news)

    def write(self) -> None:
        """Look and write the page."""
        from opsctl.core.output import show

        self.look()
        path, size = self.put()
        if not self.has_written:
            show(f"{path}: {bytes_words(size)}")
        self.has_written = True

    def put(self) -> tuple[Path, int]:
        """Write the page of what was read, and say where and of what size."""
        from opsctl.core.timestamps import iso, now
        from opsctl.ui.report.html_page import PageData, page_html, write_page

        shown = self._page_runs()
        data = PageData(
            title=" and ".join(one.name for one in shown), made_at=iso(now()), follow_s=self.follow_s, runs=shown
        )
        text = page_html(data)
        own = self.views[0].paths if len(self.sources) == 1 and self.views else None
        return write_page(text, self.output, own, [log.path for _, log in self.sources]), len(text.encode())

    def _page_runs(self) -> list[PageRun]:
        from opsctl.run.state.chosen_cluster import choose_cluster
        from opsctl.slurm.cache import cached_client
        from opsctl.ui.report.gather import known_of, known_of_log
        from opsctl.ui.report.html_page import MOST_POINTS, page_run

        names = _names([log.path if run is None else Path(run.table.name) for run, log in self.sources])
        shown = []
        for (run, log), name in zip(self.sources, names, strict=True):
            if run is None:
                known = known_of_log(log)
            else:
                known = known_of(run, log, cached_client(choose_cluster(self.cluster, run.paths), False))
            shown.append(page_run(name, _in_text(log.path), log.course, known, MOST_POINTS // len(self.sources)))
        return shown


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


def _follow(writing: _Writing, every_s: int) -> int:
    """Write it, and again whenever the log has grown, until Ctrl-C; 130 then."""
    import time

    from opsctl.core.errors import OpsctlError
    from opsctl.core.output import message

    still = 0
    try:
        writing.write()
        while True:
            time.sleep(every_s)
            try:
                still = 0 if writing.look() else still + 1
                if still % _STILL_LOOKS == 0:
                    writing.put()
            except OpsctlError as error:  # a log that is being replaced, a run file in the middle of an edit
                message(f"opsctl: {error}")
    except KeyboardInterrupt:
        return 130


def _publish(run: RunView) -> int:
    """Send the page; 1 where it could not be."""
    from opsctl.cli.hub import settings_of, show_synced, synced
    from opsctl.core.output import message

    done = synced(run, settings_of(run), ("report",), dry_run=False)
    for line in (*done.notes, *done.left):
        message(f"{done.run}: {line}")
    show_synced([done])
    return 1 if done.left else 0


def _all_runs(cluster: str | None, publish: bool) -> int:
    """Every run's own page, of those that have a log; with `publish` those with a [hub]. 1 where one failed."""
    from opsctl.cli.selection import each_run
    from opsctl.core.errors import OpsctlError, file_problem
    from opsctl.core.output import message
    from opsctl.transfer.hub.settings import hub_settings

    failed: list[str] = []

    def is_wanted(run: RunView) -> bool:
        return run.paths.main_log.exists() and (not publish or hub_settings(run) is not None)

    for name, run in each_run(is_wanted, lambda name, _: failed.append(name)):
        try:
            where = str(run.loaded.path) if run.loaded is not None else None
            if where is None:
                raise OpsctlError(run.problem)
            writing = _Writing((where,), (), None, 0, cluster)
            writing.write()
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
