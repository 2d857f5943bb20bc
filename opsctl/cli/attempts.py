"""`opsctl attempts`: what ran and how it ended. Works without Slurm."""

from __future__ import annotations

import click

from opsctl.cli.selection import cluster_option, json_option, pick, run_argument


@click.command()
@run_argument
@cluster_option
@json_option
def command(run_argument: str | None, run: str | None, cluster: str | None, as_json: bool) -> None:
    """List every attempt: when, where, from and to which iteration, why it ended, who failed first.

    Attempts that could not close themselves (a node lost, kill -9) are closed with what Slurm knows of them. Without
    Slurm the list comes all the same, and what is open reads "not known".
    """
    from opsctl.attempts.events import read
    from opsctl.attempts.lost import close_lost_attempts
    from opsctl.attempts.table import attempt_table, printed_attempt
    from opsctl.errors import OpsctlError, SlurmError
    from opsctl.output import message, print_json, show_lines
    from opsctl.records.cluster import choose_cluster
    from opsctl.records.run_view import glance
    from opsctl.slurm.commands import client_for

    paths = glance(pick(run_argument, run)).paths
    attempts, is_known = read(paths), True
    if any(attempt.is_open for attempt in attempts):
        try:
            attempts = close_lost_attempts(paths, client_for(choose_cluster(cluster, paths)))
        except OpsctlError as error:
            if not isinstance(error, SlurmError) and cluster:
                raise
            is_known = False
            message(f"opsctl: {error}")
    if as_json:
        print_json("attempts", [printed_attempt(attempt, is_known) for attempt in attempts])
    elif attempts:
        show_lines(attempt_table(attempts, is_known))
    else:
        message("no attempts yet")
