"""`opsctl watch`: checks that a cron job or a person runs; one line per finding, Nagios's exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from inspect import cleandoc

import click

from opsctl.cli import add_quiet
from opsctl.cli.selection import all_runs_option, cluster_option, json_option, run_argument
from opsctl.core.output import message, print_json, show_lines
from opsctl.monitoring import registry
from opsctl.monitoring.all_runs import findings_in, printed_run, run_lines, snapshot_all
from opsctl.monitoring.check import Detector, needs_of, run_detectors, summary
from opsctl.monitoring.finding import Finding, exit_code, printed_finding
from opsctl.monitoring.registry import DETECTORS
from opsctl.monitoring.runner import gather, pulse_lines, settings_of
from opsctl.monitoring.watch import Watched, record_findings, send_alerts
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.register import all_runs
from opsctl.run.state.run_view import view
from opsctl.slurm.cache import cached_client

#: Every check there is, in one pass over one snapshot.
ALL = "all"
_HELP_OF_ALL = """Run every check on one snapshot of the run.

The last line counts the checks that are healthy, have findings, or were not able to look. The exit code is that of
the worst finding: 2 before 3 before 1. Each finding also goes into the training log.
"""


class Checks(click.Group):
    """A command for every detector in the registry that has a help text, and one for all of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """`all`, those for several, then the detectors' names in the registry's order."""
        return [
            ALL,
            *registry.FAMILIES,
            *(registry.command_name(detector.name) for detector in registry.DETECTORS if detector.help),
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of one check, or of all; None for an unknown name."""
        if cmd_name == ALL:
            return command_of(ALL, _HELP_OF_ALL, registry.DETECTORS)
        if cmd_name in registry.FAMILIES:
            help_text, names = registry.FAMILIES[cmd_name]
            return command_of(cmd_name, help_text, [one for one in registry.DETECTORS if one.name in names])
        found = [
            detector
            for detector in registry.DETECTORS
            if detector.help and registry.command_name(detector.name) == cmd_name
        ]
        return command_of(cmd_name, found[0].help, found) if found else None


@click.group(cls=Checks)
def command() -> None:
    """Run checks for scripts and monitoring, with one line per finding.

    opsctl status is easier to read. Exit codes are Nagios's: 0 ok, 1 warning, 2 critical, 3 unknown.
    """


def command_of(name: str, help_text: str, detectors: Sequence[Detector]) -> click.Command:
    """`opsctl watch NAME` of these checks."""

    @click.command(name, help=cleandoc(help_text))
    @run_argument
    @cluster_option
    @json_option(
        findings="list[opsctl.monitoring.finding.PrintedFinding]",
        runs=("list[opsctl.monitoring.all_runs.PrintedRun]", "with `--all-runs`"),
    )
    @all_runs_option
    @click.option("--alert", is_flag=True, help="Send new findings and waiting messages to the channels of [alerts].")
    @click.option("--no-log", is_flag=True, help="Do not append the findings to the training log.")
    @click.pass_context
    def check(
        ctx: click.Context,
        run: str | None,
        cluster: str | None,
        as_json: bool,
        all_runs: bool,
        alert: bool,
        no_log: bool,
    ) -> None:
        how = _How(cluster, as_json, not no_log, alert)
        ctx.exit(_check_all_runs(detectors, how) if all_runs else _check(detectors, run, how))

    return add_quiet(check)


@dataclass(frozen=True)
class _How:
    cluster: str | None
    as_json: bool
    records: bool
    alerts: bool


def _check(detectors: Sequence[Detector], chosen: str | None, how: _How) -> int:
    """Run checks, print what they find and act on it; return the exit code."""
    run = view(chosen)
    client = cached_client(choose_cluster(how.cluster, run.paths), is_fresh=True)
    snapshot = gather(run, client, needs_of(detectors), is_tolerant=len(detectors) > 1)
    findings = run_detectors(detectors, snapshot, settings_of(run))
    if how.as_json:
        print_json("findings", [printed_finding(finding) for finding in findings])
    else:
        show_lines([*pulse_lines(findings, snapshot.now), *_last_line(detectors, [findings])])
    _act([Watched(run, snapshot, findings)], detectors, how)
    return exit_code(findings)


def _check_all_runs(detectors: Sequence[Detector], how: _How) -> int:
    """Check every known run; return the worst exit code."""
    looks = snapshot_all(
        all_runs(),
        lambda paths: choose_cluster(how.cluster, paths),
        partial(cached_client, is_fresh=True),
        needs_of(detectors),
    )
    found = [(look, findings_in(look, detectors)) for look in looks]
    if how.as_json:
        print_json("runs", [printed_run(look, findings) for look, findings in found])
    elif found:
        show_lines([*run_lines(found), *_last_line(detectors, [findings for _, findings in found])])
    else:
        message("no runs: opsctl submit puts a run on the list")
    checked = [Watched(look.run, look.snapshot, findings) for look, findings in found if look.run and look.snapshot]
    _act(checked, detectors, how)
    return exit_code([one for _, findings in found for one in findings])


def _last_line(detectors: Sequence[Detector], found: Sequence[Sequence[Finding]]) -> list[str]:
    """Return the line that ends `watch all`; none for a single check."""
    return [summary(detectors, found)] if len(detectors) == len(DETECTORS) else []


def _act(runs: Sequence[Watched], detectors: Sequence[Detector], how: _How) -> None:
    if how.records:
        for line in record_findings(runs, detectors, how.cluster):
            message(f"opsctl: {line}")
    if how.alerts:
        for line in send_alerts(runs, detectors):
            message(f"opsctl: {line}")
