"""`opsctl` without a command: what to do next here."""

from __future__ import annotations


def show_what_is_next() -> int:
    """Say it in one screen; the exit code."""
    import os
    from pathlib import Path

    from opsctl.cli.selection import terminal
    from opsctl.errors import OpsctlError, UsageError
    from opsctl.output import write_screen
    from opsctl.records.cluster import choose_cluster
    from opsctl.records.locate import known_runs, locate_run_file
    from opsctl.records.run_view import view
    from opsctl.records.shared_answers import looking_at
    from opsctl.status.next_steps import no_run_here, run_here, run_that_cannot_be_read
    from opsctl.status.one_run import look_at_run

    width, colour = terminal()
    try:
        locate_run_file(None)
    except UsageError as error:
        if os.environ.get("OPSCTL_RUN"):
            lines = run_that_cannot_be_read(f"$OPSCTL_RUN: {error}", width, colour)
        else:
            lines = no_run_here(str(Path.cwd()), known_runs(), width, colour)
    else:
        try:
            run = view(None, asks_first=True)
            one = look_at_run(run, looking_at(choose_cluster(None, run.paths)))
            lines = run_here(one.overview, one.found, width, colour)
        except (OpsctlError, OSError) as error:
            lines = run_that_cannot_be_read(str(error), width, colour)
    write_screen("\n".join(lines) + "\n")
    return 0
