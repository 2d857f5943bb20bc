"""`opsctl attempts`: what ran and how it ended. Works without Slurm."""

from __future__ import annotations

import click

from opsctl.cli.selection import cluster_option, json_option, run_argument
from opsctl.core.errors import OpsctlError, SlurmError
from opsctl.core.output import message, print_json, printable, show_lines
from opsctl.diagnosis.triage.on_close import judge_lost
from opsctl.run.attempts.close_lost import may_be_of, settle
from opsctl.run.attempts.events import read
from opsctl.run.attempts.hidden_jobs import CANNOT_SEE
from opsctl.run.attempts.table import attempt_table, changes, printed_attempt
from opsctl.run.state.chosen_cluster import choose_cluster, record_of
from opsctl.run.state.run_view import glance
from opsctl.slurm.backends import client_for


@click.command()
@run_argument
@cluster_option
@click.option("--report", is_flag=True, help="Show where the time since the first submission went, and the GPU hours.")
@click.option("--since", metavar="TIME", help="With --report: count from this time (12h, 3d, 2026-03-01T08:00).")
@json_option(
    attempts="list[opsctl.run.attempts.table.PrintedAttempt]",
    goodput=("opsctl.diagnosis.goodput.report.GoodputReport", "with `--report`"),
)
def command(run: str | None, cluster: str | None, report: bool, since: str | None, as_json: bool) -> None:
    """List every attempt: time, nodes, iterations, why it ended, what failed first.

    Attempts that could not record their end (a lost node, kill -9) are closed with Slurm's data. An attempt is "not
    known" if Slurm does not say whether it still runs.

    --report shows how much time went to training, waiting, starting, evaluating, saving and idling, how much work was
    lost by each cause, how often to save, and what to fix next.
    """
    if since is not None and not report:
        raise click.UsageError("--since needs --report")
    seen = glance(run)
    paths = seen.paths
    attempts = read(paths)
    unknown = frozenset(attempt.id for attempt in attempts if attempt.is_open)
    if unknown:
        try:
            asked = choose_cluster(cluster, paths)
            slurm = client_for(asked)
            here = record_of(asked, slurm).name or ""
            settled = settle(paths, slurm, cluster=here, judge=judge_lost(paths))
            attempts, unknown = settled.attempts, settled.unseen
            if unknown:
                message(f"opsctl: {CANNOT_SEE}: whether those run that are open is known to their owners only")
            if elsewhere := [one for one in attempts if one.is_open and not may_be_of(one, here)]:
                unknown |= {one.id for one in elsewhere}
                names = ", ".join(sorted({printable(one.cluster) for one in elsewhere}))
                message(f"opsctl: cluster {here} does not know the attempts of {names}: those were not checked")
        except OpsctlError as error:
            if not isinstance(error, SlurmError) and cluster:
                raise
            message(f"opsctl: {error}")
    if report:
        from opsctl.cli.attempts_report import show_report

        show_report(seen, attempts, since, cluster, as_json)
        return
    news = changes(paths, attempts)
    if as_json:
        print_json("attempts", [printed_attempt(attempt, attempt.id not in unknown, news) for attempt in attempts])
    elif attempts:
        show_lines(attempt_table(attempts, unknown, news))
    else:
        message("no attempts yet")
