"""`opsctl watch`: checks that a cron job or a person runs; one line per finding, Nagios's exit codes."""

from __future__ import annotations

import click

from opsctl.cli.selection import cluster_option, json_option, pick, run_argument


@click.group()
def command() -> None:
    """Checks with one line per finding and Nagios exit codes: 0 ok, 1 warning, 2 critical, 3 cannot tell."""


@command.command()
@run_argument
@cluster_option
@json_option
@click.option("--no-log", is_flag=True, help="Only print; do not append to the training log.")
@click.pass_context
def training(
    ctx: click.Context, run_argument: str | None, run: str | None, cluster: str | None, as_json: bool, no_log: bool
) -> None:
    """Is the training running or scheduled?

    0: it runs, waits, or is finished. 1: something held behind it, or it is suspended. 2: held, waiting for what can
    never come, or not there. 3: Slurm does not answer. Each line also goes into the training log.
    """
    import sys

    from opsctl.errors import OpsctlError
    from opsctl.output import message, print_json
    from opsctl.records.cluster import choose_cluster
    from opsctl.records.run_view import view
    from opsctl.slurm.commands import client_for
    from opsctl.status.status_json import finding_json
    from opsctl.watch.detectors.training import training_findings
    from opsctl.watch.finding import exit_code
    from opsctl.watch.runner import append_to_log, pulse_lines, training_settings, training_snapshot

    seen = view(pick(run_argument, run))
    snapshot = training_snapshot(seen, client_for(choose_cluster(cluster, seen.paths)))
    findings = training_findings(snapshot, training_settings(seen))
    lines = pulse_lines(findings, snapshot.now)
    if as_json:
        print_json("findings", [finding_json(finding) for finding in findings])
    else:
        sys.stdout.write("\n".join(lines) + "\n")
    if not no_log:
        try:
            append_to_log(seen.paths, lines)
        except OpsctlError as error:
            message(f"opsctl: {error}")
    ctx.exit(exit_code(findings))
