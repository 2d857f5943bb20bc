"""`opsctl logs`: the end of the training log, and what comes. Needs no Slurm."""

from __future__ import annotations

import click

from opsctl.cli.selection import pick, run_argument


@click.command()
@run_argument
@click.option("-f", "--follow", "following", is_flag=True, help="Go on as the log grows, also when it is replaced.")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="How many of the last.")
@click.option("--rank", type=click.IntRange(min=0), help="Only what this rank wrote, in the newest attempt.")
@click.pass_context
def command(
    ctx: click.Context, run_argument: str | None, run: str | None, following: bool, lines: int, rank: int | None
) -> None:
    r"""Show the end of the training log; with -f follow it.

    The log is `logs/main_log.txt` under the run's output folder; every line of every rank is in it, the watchdog's too.
    What would steer a terminal, such as colours, is shown as \x1b, through a pipe too; the file has it as it was.
    """
    from opsctl.logs.sources import main_source, rank_source
    from opsctl.output import message, show_lines
    from opsctl.records.run_view import glance

    paths = glance(pick(run_argument, run)).paths
    source = main_source(paths) if rank is None else rank_source(paths, rank)
    try:
        show_lines(source.follow(lines, message, _pause) if following else source.last(lines))
    except KeyboardInterrupt:
        ctx.exit(130)


def _pause() -> None:
    """Wait for the log to grow, and see whether whoever read us has left: a quiet log must not keep us for ever."""
    import select
    import sys

    from opsctl.logs.follow import POLL_S

    reader = select.poll()
    reader.register(sys.stdout.fileno(), 0)
    if reader.poll(POLL_S * 1000):  # nothing was asked for: only an error or a hang-up is reported
        raise BrokenPipeError
