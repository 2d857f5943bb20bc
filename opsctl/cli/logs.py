"""`opsctl logs`: the end of the training log, and what comes. Needs no Slurm."""

from __future__ import annotations

import click

from opsctl.cli.selection import run_argument


@click.command()
@run_argument
@click.option(
    "-f", "--follow", "following", is_flag=True, help="Print new lines as the log grows, also after it is replaced."
)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Number of lines to show."
)
@click.option("--rank", type=click.IntRange(min=0), help="Show only the output of this rank in the newest attempt.")
@click.pass_context
def command(ctx: click.Context, run: str | None, following: bool, lines: int, rank: int | None) -> None:
    r"""Show the end of the training log; with -f follow it.

    The log is `logs/main_log.txt` under the run's output folder, with every line of every rank and of the watchdog.
    Control characters are shown as \x1b.
    """
    from opsctl.core.output import message, show_lines
    from opsctl.run.logs.follow import POLL_S, main_source, rank_source
    from opsctl.run.state.run_view import glance

    try:
        paths = glance(run).paths
        source = main_source(paths) if rank is None else rank_source(paths, rank)
        show_lines(source.follow(lines, message, lambda: _pause(POLL_S)) if following else source.last(lines))
    except KeyboardInterrupt:
        ctx.exit(130)


def _pause(seconds: float) -> None:
    """Wait for the log to grow, and check whether our reader has left, so that a quiet log does not keep us."""
    import select
    import sys

    reader = select.poll()
    reader.register(sys.stdout.fileno(), 0)
    if reader.poll(seconds * 1000):  # nothing was asked for: only an error or a hang-up is reported
        raise BrokenPipeError
