"""`opsctl status`: one screen that answers "is it healthy?", of one run or of all. One squeue, the rest from files."""

from __future__ import annotations

from dataclasses import dataclass

import click

from opsctl.cli.selection import (
    all_or_one,
    cluster_option,
    fresh_option,
    json_option,
    run_argument,
    terminal,
)


@click.command()
@run_argument
@click.option(
    "--all",
    "all_runs",
    is_flag=True,
    callback=all_or_one,
    help="Show all runs of yours and of your group, the worst first.",
)
@click.option("--hub", metavar="REPO", help="Read the hub's copy: OWNER/NAME or datasets/OWNER/NAME.")
@cluster_option
@fresh_option
@json_option(
    status="opsctl.ui.status.json_output.Status",
    runs=("list[opsctl.ui.status.all_runs.PrintedRow]", "with `--all`"),
    far_status=("opsctl.ui.status.hub_status.FarStatus", "with `--hub`"),
)
@click.option("--watch", "watching", is_flag=True, help="Show a live screen until q is pressed.")
@click.pass_context
def command(
    ctx: click.Context,
    run: str | None,
    all_runs: bool,
    hub: str | None,
    cluster: str | None,
    fresh: bool,
    as_json: bool,
    watching: bool,
) -> None:
    """Show a run's progress, speed, last loss, checkpoint, queue and open problems.

    Exits 1 if Slurm does not answer; the data of the run's files is shown anyway. --all shows the runs of the group's
    cron folder, and those that you made or submitted. --hub shows the hub's copy and its age from anywhere, without the
    queue.
    """
    if watching and as_json:
        raise click.UsageError("--watch and --json cannot be combined")
    if hub is not None:
        if run or all_runs or watching or cluster:
            raise click.UsageError(
                "--hub reads what the hub has, once: give no run, --all, --watch or --cluster with it"
            )
        _print(_from_afar(hub, as_json))
        return
    look = _Look(run, all_runs, cluster, fresh or as_json, watching)
    if watching:
        if not _can_draw():
            raise click.UsageError("--watch draws on a terminal, and this is none: remove it")
        ctx.exit(_stay(look))
    screen = look.take(as_json)
    _print(screen)
    ctx.exit(1 if screen.blind is not None else 0)


@dataclass(frozen=True)
class _Screen:
    text: str
    blind: str | None  # why a Slurm could not be asked


@dataclass(frozen=True)
class _Look:
    """The choice of runs to show, repeatedly with --watch."""

    chosen: str | None
    all_runs: bool
    cluster: str | None
    is_fresh: bool
    stays: bool

    def take(self, as_json: bool = False) -> _Screen:
        """One look."""
        return self._all(as_json) if self.all_runs else self._one(as_json)

    def _one(self, as_json: bool) -> _Screen:
        from opsctl.core.output import json_text
        from opsctl.monitoring.overview import status_of_run
        from opsctl.run.state.chosen_cluster import choose_cluster
        from opsctl.run.state.run_view import view
        from opsctl.slurm.cache import cached_client
        from opsctl.ui.status.screen import status_lines

        run = view(self.chosen)
        one = status_of_run(
            run, cached_client(choose_cluster(self.cluster, run.paths), self.is_fresh, is_live=self.stays)
        )
        seen = one.overview.seen
        if as_json:
            from opsctl.ui.status.json_output import printed_status

            return _Screen(json_text("status", printed_status(one.overview, one.found, one.extras)), seen.blind)
        lines = status_lines(one.overview, one.found, *terminal(), one.extras)
        return _Screen("\n".join(lines) + "\n", seen.blind)

    def _all(self, as_json: bool) -> _Screen:
        from functools import partial

        from opsctl.core.output import json_text
        from opsctl.core.timestamps import now
        from opsctl.monitoring.all_runs import snapshot_all
        from opsctl.run.state.chosen_cluster import choose_cluster
        from opsctl.run.state.register import all_runs
        from opsctl.slurm.cache import cached_client
        from opsctl.ui.status.all_runs import LIST_PARTS, all_lines, printed_row, rows_of

        client = partial(cached_client, is_fresh=self.is_fresh, is_live=self.stays)
        looks = snapshot_all(all_runs(), lambda paths: choose_cluster(self.cluster, paths), client, LIST_PARTS)
        rows = rows_of(looks)
        blind = next((one.snapshot.blind for one in looks if one.snapshot and one.snapshot.blind is not None), None)
        if as_json:
            return _Screen(json_text("runs", [printed_row(row) for row in rows]), blind)
        return _Screen("\n".join(all_lines(rows, now(), *terminal())) + "\n", blind)


def _from_afar(hub: str, as_json: bool) -> _Screen:
    from opsctl.core.output import json_text
    from opsctl.transfer.hub.far_files import FarFiles, repo_of
    from opsctl.transfer.hub.far_run import far_run
    from opsctl.transfer.hub.hub_errors import LOOK_S, RetryPolicy
    from opsctl.ui.status.hub_status import far_lines, printed_far

    files = FarFiles(repo_of(hub))
    run = RetryPolicy(LOOK_S).through(lambda: far_run(files))
    if as_json:
        return _Screen(json_text("far_status", printed_far(run)), None)
    return _Screen("\n".join(far_lines(run, *terminal())) + "\n", None)


def _print(screen: _Screen) -> None:
    from opsctl.core.output import message, write_screen

    write_screen(screen.text)
    if screen.blind is not None:
        message(f"opsctl: {screen.blind}")


def _can_draw() -> bool:
    """Return whether input and output are a terminal on which a screen can be drawn; Textual draws on stderr's."""
    import os
    import sys

    is_terminal = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return is_terminal and os.environ.get("TERM", "dumb") != "dumb"


def _stay(look: _Look) -> int:
    """Show the live screen; return the exit code."""
    import os

    from opsctl.ui.tui.refresh import AllRuns, OneRun

    one = None if look.all_runs else OneRun(look.chosen, look.cluster)
    # It takes half a second to import: not before the run is known to be there.
    from opsctl.ui.tui.app import INTERRUPTED, LiveApp

    for name in ("COLUMNS", "LINES"):  # exported by some shells, and taken for the terminal's size for ever
        os.environ.pop(name, None)
    watched = one or AllRuns(look.cluster)

    code = LiveApp(watched, terminal()[1]).run(mouse=False)  # the terminal's own selecting goes on
    return INTERRUPTED if code is None else code
