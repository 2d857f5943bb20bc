"""`opsctl status`: one screen that answers "is it healthy?". One squeue, the rest from the run's files."""

from __future__ import annotations

import click

from opsctl.cli.selection import cluster_option, json_option, pick, run_argument

#: Seconds between two looks of --watch: kind to the controller, quick enough for a person.
WATCH_EVERY_S = 15


@click.command()
@run_argument
@cluster_option
@json_option
@click.option("--watch", "watching", is_flag=True, help=f"Again every {WATCH_EVERY_S} s, in place, until Ctrl-C.")
@click.pass_context
def command(
    ctx: click.Context, run_argument: str | None, run: str | None, cluster: str | None, as_json: bool, watching: bool
) -> None:
    """What a run is doing: state, progress, speed, last loss and checkpoint, queue, what needs somebody.

    Exits 1 when Slurm does not answer; what the run's files say is shown all the same.
    """
    if watching and as_json:
        raise click.UsageError("--watch is for people and --json for programs: give one of them")
    chosen = pick(run_argument, run)
    if watching:
        ctx.exit(_watch(chosen, cluster))
    ctx.exit(_show(chosen, cluster, as_json))


def _show(chosen: str | None, cluster: str | None, as_json: bool, before: str = "", after: str = "") -> int:
    """Print one status, between `before` and `after`; the exit code."""
    import os
    import shutil
    import sys

    from opsctl.output import message, print_json, write_screen
    from opsctl.records.cluster import choose_cluster
    from opsctl.records.run_view import view
    from opsctl.slurm.commands import client_for
    from opsctl.status.overview import Overview, findings
    from opsctl.status.screen import status_lines
    from opsctl.watch.runner import gather, settings_of

    run = view(chosen)
    snapshot = gather(run, client_for(choose_cluster(cluster, run.paths)))
    overview = Overview(run.table.name, run.table.team, run.paths.output, snapshot)
    found = findings(overview, settings_of(run))
    if as_json:
        from opsctl.status.printed import printed_status

        print_json("status", printed_status(overview, found))
    else:
        is_terminal = sys.stdout.isatty()
        colour = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = shutil.get_terminal_size().columns if is_terminal else 100
        lines = status_lines(overview, found, width, colour)
        write_screen(before + "\n".join(lines) + "\n" + after)
    if snapshot.blind is not None and not before:
        message(f"opsctl: {snapshot.blind}")
    return 1 if snapshot.blind is not None else 0


def _watch(chosen: str | None, cluster: str | None) -> int:
    """Show it again and again until Ctrl-C; 130 then."""
    import sys
    import time

    from opsctl.errors import OpsctlError
    from opsctl.output import message

    # Home and clear what is below, so that the screen does not flicker; elsewhere an empty line between two looks.
    before, after = ("\x1b[H\x1b[J", "") if sys.stdout.isatty() else ("", "\n")
    shown = False
    try:
        while True:
            try:
                _show(chosen, cluster, False, before, after)
                shown = True
            except OpsctlError as error:
                # A run file in the middle of an edit must not end a look that somebody left running.
                if not shown:
                    raise
                message(f"opsctl: {error}")
            time.sleep(WATCH_EVERY_S)
    except KeyboardInterrupt:
        return 130
