"""`opsctl status`: one screen that answers "is it healthy?", of one run or of all. One squeue, the rest from files."""

from __future__ import annotations

from dataclasses import dataclass

import click

from opsctl.cli.selection import (
    age_words,
    cluster_option,
    far_options,
    fresh_option,
    json_option,
    only_with_hub,
    pick,
    run_argument,
)

#: Seconds between two looks of --watch: kind to the controller, quick enough for a person.
WATCH_EVERY_S = 15


@click.command()
@run_argument
@click.option("--all", "all_runs", is_flag=True, help="Every run that you or your group has, worst first.")
@far_options
@cluster_option
@fresh_option
@json_option
@click.option("--watch", "watching", is_flag=True, help=f"Again every {WATCH_EVERY_S} s, in place, until Ctrl-C.")
@click.pass_context
def command(
    ctx: click.Context,
    run_argument: str | None,
    run: str | None,
    all_runs: bool,
    hub: str | None,
    path: str | None,
    revision: str | None,
    cluster: str | None,
    fresh: bool,
    as_json: bool,
    watching: bool,
) -> None:
    """What a run is doing: state, progress, speed, last loss and checkpoint, queue, what needs somebody.

    Exits 1 when Slurm does not answer; what the run's files say is shown all the same. With --all: those of the group's
    cron folder, and those that you have made or submitted. With --hub: what the hub's copy says, from anywhere, and how
    old that is; only the cluster knows the queue.
    """
    only_with_hub(hub, path=path, revision=revision)
    if watching and as_json:
        raise click.UsageError("--watch is for people and --json for programs: give one of them")
    chosen = pick(run_argument, run)
    if all_runs and chosen:
        raise click.UsageError(f"--all, or the one run {chosen}: give one of them")
    if hub is not None:
        if chosen or all_runs or watching or cluster:
            raise click.UsageError(
                "--hub reads what the hub has, once: give no run, --all, --watch or --cluster with it"
            )
        _print(_from_afar(hub, revision, path, as_json))
        return
    look = _Look(chosen, all_runs, cluster, fresh)
    if watching:
        ctx.exit(_watch(look))
    screen = look.take(as_json)
    _print(screen)
    ctx.exit(1 if screen.blind is not None else 0)


@dataclass(frozen=True)
class _Screen:
    text: str
    blind: str | None  # why a Slurm could not be asked
    queue_age_s: float = 0.0


@dataclass(frozen=True)
class _Look:
    """What is to be looked at, again and again with --watch."""

    chosen: str | None
    all_runs: bool
    cluster: str | None
    is_fresh: bool

    def take(self, as_json: bool = False) -> _Screen:
        """One look."""
        return self._all(as_json) if self.all_runs else self._one(as_json)

    def _one(self, as_json: bool) -> _Screen:
        from dataclasses import replace

        from opsctl.carbon.glance import energy_seen
        from opsctl.evaluation.glance import evaluations_seen
        from opsctl.output import json_text
        from opsctl.records.cluster import choose_cluster
        from opsctl.records.run_view import view
        from opsctl.records.shared_answers import looking_at
        from opsctl.status.overview import LOOKED_AT, Overview
        from opsctl.status.reading import goodput_of, open_findings, read_desk
        from opsctl.status.screen import status_lines
        from opsctl.watch.runner import gather

        run = view(self.chosen)
        snapshot = gather(run, looking_at(choose_cluster(self.cluster, run.paths), self.is_fresh), LOOKED_AT)
        overview = Overview(run.table.name, run.table.team, run.paths.output, snapshot)
        carbon = run.loaded.file.carbon if run.loaded is not None else None
        desk = replace(
            read_desk(run.paths, snapshot.now),
            energy=energy_seen(run.paths, carbon),
            evaluation=evaluations_seen(run.paths),
            goodput=goodput_of(snapshot),
        )
        found = open_findings(run, overview, desk)
        if as_json:
            from opsctl.status.printed import printed_status

            return _Screen(json_text("status", printed_status(overview, found, desk)), snapshot.blind)
        lines = status_lines(overview, found, *_terminal(), desk)
        return _Screen("\n".join(lines) + "\n", snapshot.blind, snapshot.queue_age_s)

    def _all(self, as_json: bool) -> _Screen:
        from functools import partial

        from opsctl.moments import now
        from opsctl.output import json_text
        from opsctl.records.cluster import choose_cluster
        from opsctl.records.register import all_runs
        from opsctl.records.shared_answers import looking_at
        from opsctl.status.all_runs import all_lines, printed_row
        from opsctl.status.reading import OF_MANY, rows_of
        from opsctl.watch.all_runs import look_at_all

        client = partial(looking_at, is_fresh=self.is_fresh)
        looks = look_at_all(all_runs(), lambda paths: choose_cluster(self.cluster, paths), client, OF_MANY)
        rows = rows_of(looks)
        blind = next((one.snapshot.blind for one in looks if one.snapshot and one.snapshot.blind is not None), None)
        if as_json:
            return _Screen(json_text("runs", [printed_row(row) for row in rows]), blind)
        age_s = max((one.snapshot.queue_age_s for one in looks if one.snapshot), default=0.0)
        return _Screen("\n".join(all_lines(rows, now(), *_terminal())) + "\n", blind, age_s)


def _from_afar(hub: str, revision: str | None, path: str | None, as_json: bool) -> _Screen:
    from opsctl.hub.answers import patiently
    from opsctl.hub.far_files import FarFiles, repo_of
    from opsctl.hub.far_run import far_run
    from opsctl.output import json_text
    from opsctl.status.from_afar import far_lines, printed_far

    files = FarFiles(repo_of(hub, revision))
    run = patiently(lambda: far_run(files, path))
    if as_json:
        return _Screen(json_text("far_status", printed_far(run)), None)
    return _Screen("\n".join(far_lines(run, *_terminal())) + "\n", None)


def _terminal() -> tuple[int, bool]:
    """Columns to fill, and whether colours are wanted."""
    import os
    import shutil
    import sys

    is_terminal = sys.stdout.isatty()
    colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return shutil.get_terminal_size().columns if is_terminal else 100, colour


def _print(screen: _Screen) -> None:
    from opsctl.output import message, write_screen

    write_screen(screen.text)
    if screen.blind is not None:
        message(f"opsctl: {screen.blind}")
    elif words := age_words(screen.queue_age_s):
        message(words)


def _watch(look: _Look) -> int:
    """Show it again and again until Ctrl-C; 130 then."""
    import sys
    import time

    from opsctl.errors import OpsctlError
    from opsctl.output import message, write_screen

    # Home and clear what is below, so that the screen does not flicker; elsewhere an empty line between two looks.
    before, after = ("\x1b[H\x1b[J", "") if sys.stdout.isatty() else ("", "\n")
    shown = False
    try:
        while True:
            try:
                screen = look.take()
                age = age_words(screen.queue_age_s)
                write_screen(before + screen.text + (f"{age}\n" if age else "") + after)
                if screen.blind is not None and not before:
                    message(f"opsctl: {screen.blind}")
                shown = True
            except OpsctlError as error:
                # A run file in the middle of an edit must not end a look that somebody left running.
                if not shown:
                    raise
                message(f"opsctl: {error}")
            time.sleep(WATCH_EVERY_S)
    except KeyboardInterrupt:
        return 130
