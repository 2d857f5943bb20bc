"""`opsctl logs`: the end of the training log, and what comes; or the end of the hub's copy. Needs no Slurm."""

from __future__ import annotations

import click

from opsctl.cli.selection import far_options, only_with_hub, run_argument


@click.command()
@run_argument
@click.option(
    "-f", "--follow", "following", is_flag=True, help="Print new lines as the log grows, also after it is replaced."
)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Number of lines to show."
)
@click.option("--rank", type=click.IntRange(min=0), help="Show only the output of this rank in the newest attempt.")
@far_options
@click.pass_context
def command(
    ctx: click.Context,
    run: str | None,
    following: bool,
    lines: int,
    rank: int | None,
    hub: str | None,
    revision: str | None,
) -> None:
    r"""Show the end of the training log; with -f follow it.

    The log is `logs/main_log.txt` under the run's output folder, with every line of every rank and of the watchdog.
    --hub reads the hub's copy from anywhere and needs no run folder. Control characters are shown as \x1b.
    """
    from opsctl.core.output import message, show_lines

    only_with_hub(hub, revision=revision)
    if hub is not None and (run or rank is not None or following):
        raise click.UsageError("--hub reads the end of the hub's copy, once: give no run, --rank or --follow with it")
    try:
        if hub is not None:
            show_lines(_far_lines(hub, revision, lines))
            return
        from opsctl.run.logs.follow import POLL_S, main_source, rank_source
        from opsctl.run.state.run_view import glance

        paths = glance(run).paths
        source = main_source(paths) if rank is None else rank_source(paths, rank)
        show_lines(source.follow(lines, message, lambda: _pause(POLL_S)) if following else source.last(lines))
    except KeyboardInterrupt:
        ctx.exit(130)


def _far_lines(hub: str, revision: str | None, lines: int) -> list[str]:
    from opsctl.core.errors import OpsctlError
    from opsctl.transfer.hub.far_files import FarFiles, repo_of
    from opsctl.transfer.hub.far_log import MAIN_LOG, last_far_lines
    from opsctl.transfer.hub.hub_errors import LOOK_S, RetryPolicy

    files = FarFiles(repo_of(hub, revision))
    look = RetryPolicy(LOOK_S).through(lambda: files.look(MAIN_LOG))
    if look is None:
        raise OpsctlError(f"no log yet at {MAIN_LOG} in {files.repo}: opsctl hub sync logs sends it")
    return RetryPolicy(LOOK_S).through(lambda: last_far_lines(files, look, lines))


def _pause(seconds: float) -> None:
    """Wait for the log to grow, and check whether our reader has left, so that a quiet log does not keep us."""
    import select
    import sys

    reader = select.poll()
    reader.register(sys.stdout.fileno(), 0)
    if reader.poll(seconds * 1000):  # nothing was asked for: only an error or a hang-up is reported
        raise BrokenPipeError
