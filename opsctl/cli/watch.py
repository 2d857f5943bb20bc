"""`opsctl watch`: checks that a cron job or a person runs; one line per finding, Nagios's exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from inspect import cleandoc
from typing import TYPE_CHECKING

import click

from opsctl.cli.selection import all_runs_option, always_fresh_option, cluster_option, json_option, run_argument

if TYPE_CHECKING:
    from opsctl.monitoring.check import Detector
    from opsctl.monitoring.finding import Finding
    from opsctl.monitoring.snapshot import Snapshot
    from opsctl.run.state.run_view import RunView

#: Every check there is, in one pass over one snapshot.
ALL = "all"
_HELP_OF_ALL = """Every check, in one look at the run.

The exit code is that of the worst finding: 2 before 3 before 1. Each line also goes into the training log.
"""


class Checks(click.Group):
    """A command for every detector in the registry that has a help text, and one for all of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """`all`, those for several, then the detectors' names in the registry's order."""
        from opsctl.monitoring import registry

        return [
            ALL,
            *registry.FAMILIES,
            *(registry.command_name(detector.name) for detector in registry.DETECTORS if detector.help),
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of one detector, or of all; None for a name that no detector with a help text has."""
        from opsctl.monitoring import registry

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
    """Checks with one line per finding and Nagios exit codes: 0 ok, 1 warning, 2 critical, 3 cannot tell."""


def command_of(name: str, help_text: str, detectors: Sequence[Detector]) -> click.Command:
    """`opsctl watch NAME` of these checks."""

    @click.command(name, help=cleandoc(help_text))
    @run_argument
    @cluster_option
    @json_option(
        findings="list[opsctl.monitoring.finding.PrintedFinding]",
        runs=("list[opsctl.monitoring.all_runs.PrintedRun]", "with `--all-runs`"),
    )
    @always_fresh_option
    @all_runs_option
    @click.option("--alert", is_flag=True, help="Tell the channels of [alerts] what is news, and send what waits.")
    @click.option("--no-log", is_flag=True, help="Only print; do not append to the training log.")
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

    return check


@dataclass(frozen=True)
class _How:
    cluster: str | None
    as_json: bool
    goes_into_log: bool
    tells_channels: bool


def _check(detectors: Sequence[Detector], chosen: str | None, how: _How) -> int:
    """Run checks, print and log what they find; the exit code."""
    from opsctl.core.output import print_json, show_lines
    from opsctl.monitoring.check import needs_of, run_detectors
    from opsctl.monitoring.finding import exit_code, printed_finding
    from opsctl.monitoring.runner import gather, pulse_lines, settings_of
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.run.state.run_view import view
    from opsctl.slurm.cache import cached_client

    run = view(chosen)
    client = cached_client(choose_cluster(how.cluster, run.paths), is_fresh=True)
    snapshot = gather(run, client, needs_of(detectors), is_tolerant=len(detectors) > 1)
    findings = run_detectors(detectors, snapshot, settings_of(run))
    lines = pulse_lines(findings, snapshot.now)
    if how.as_json:
        print_json("findings", [printed_finding(finding) for finding in findings])
    else:
        show_lines(lines)
    _keep(run, snapshot, lines, how)
    _see_to_nodes(run, snapshot, detectors, how)
    if how.tells_channels:
        _tell(run, snapshot, findings, detectors)
    return exit_code(findings)


def _check_all_runs(detectors: Sequence[Detector], how: _How) -> int:
    """The same of every run that is known; the worst exit code."""
    from opsctl.core.output import message, print_json, show_lines
    from opsctl.monitoring.all_runs import findings_in, look_at_all, printed_run, run_lines
    from opsctl.monitoring.check import needs_of
    from opsctl.monitoring.finding import exit_code
    from opsctl.monitoring.runner import pulse_lines
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.run.state.register import all_runs
    from opsctl.slurm.cache import cached_client

    looks = look_at_all(
        all_runs(),
        lambda paths: choose_cluster(how.cluster, paths),
        partial(cached_client, is_fresh=True),
        needs_of(detectors),
    )
    found = [(look, findings_in(look, detectors)) for look in looks]
    if how.as_json:
        print_json("runs", [printed_run(look, findings) for look, findings in found])
    elif found:
        show_lines(run_lines(found))
    else:
        message("no runs: opsctl submit puts a run on the list")
    told = [(look.run, look.snapshot, findings) for look, findings in found if look.run and look.snapshot]
    for run, snapshot, findings in told:
        _keep(run, snapshot, pulse_lines(findings, snapshot.now), how)
        _see_to_nodes(run, snapshot, detectors, how)
    if how.tells_channels:
        _tell_all(told, detectors)
    return exit_code([one for _, findings in found for one in findings])


def _keep(run: RunView, snapshot: Snapshot, lines: Sequence[str], how: _How) -> None:
    """Put the lines into the training log and how full the disks are on record. Not being able to is said.

    A training that was never submitted has neither.
    """
    import contextlib

    from opsctl.core.errors import OpsctlError
    from opsctl.core.output import message
    from opsctl.monitoring.gather.space import remember
    from opsctl.monitoring.runner import append_to_log

    if not how.goes_into_log or not (snapshot.was_submitted or run.paths.main_log.exists()):
        return
    with contextlib.suppress(OSError):  # a full disk is among the findings
        remember(run.paths, snapshot)
    try:
        append_to_log(run.paths, lines)
    except OpsctlError as error:
        message(f"opsctl: {error}")


def _see_to_nodes(run: RunView, snapshot: Snapshot, detectors: Sequence[Detector], how: _How) -> None:
    """After a look at everything: put down which node is slow, and keep what is queued off nodes that are bad.

    What goes wrong there is said, and stops no check.
    """
    from opsctl.core.output import message
    from opsctl.core.timestamps import now
    from opsctl.diagnosis.nodes.exclusion import keep_and_apply, wanted_by
    from opsctl.diagnosis.nodes.node_evidence import append_node_evidence, read_node_evidence, slow_evidence
    from opsctl.monitoring import registry
    from opsctl.monitoring.checks.nodes import slow_nodes
    from opsctl.monitoring.runner import settings_of
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.slurm.backends import client_for

    file = run.file
    if not how.goes_into_log or len(detectors) < len(registry.DETECTORS) or not snapshot.was_submitted or file is None:
        return
    try:
        for slow in slow_nodes(snapshot.timings, settings_of(run).watch.slower_node_percent):
            known = read_node_evidence(run.paths)
            new = slow_evidence(slow.node, slow.ratio, slow.words, snapshot.timed_attempt, slow.at or now(), known)
            if new is not None:
                append_node_evidence(run.paths, new)
    except OSError as error:
        message(f"opsctl: {run.table.name}: what speaks against nodes cannot be put down: {error.strerror}")
    try:
        wanted = wanted_by(run.paths, file.slurm)
    except OSError as error:
        message(f"opsctl: {run.table.name}: bad nodes cannot be kept out of the queue: {error}")
        return
    for line in keep_and_apply(run.paths, client_for(choose_cluster(how.cluster, run.paths)), wanted):
        message(f"opsctl: {run.table.name}: {line}")


def _tell_all(told: Sequence[tuple[RunView, Snapshot, Sequence[Finding]]], detectors: Sequence[Detector]) -> None:
    """Tell the channels of all these runs. Several at once: a slow channel of one run holds up no other."""
    from concurrent.futures import ThreadPoolExecutor

    from opsctl.monitoring.alerts.handle import audience_of, reported_once
    from opsctl.monitoring.finding import exit_code

    here = [one for one in told if one[0].paths.output.is_dir()]
    of_desk = {one.name for one in detectors if one.is_shared}
    shares = reported_once([findings for _, _, findings in here], [audience_of(run) for run, _, _ in here], of_desk)
    with ThreadPoolExecutor(8) as pool:
        for (run, snapshot, found), share in zip(here, shares, strict=True):
            # Who leaves something critical to another run does not say that all is well.
            is_all = exit_code(share) == exit_code(found)
            pool.submit(_tell, run, snapshot, share, detectors, is_all)


def _tell(
    run: RunView, snapshot: Snapshot, findings: Sequence[Finding], detectors: Sequence[Detector], is_all: bool = True
) -> None:
    """Tell the channels. What goes wrong there is said, and stops no check."""
    from opsctl.core.errors import OpsctlError
    from opsctl.core.output import message
    from opsctl.monitoring import registry
    from opsctl.monitoring.alerts.handle import notify

    looked_at = {one.name for one in detectors}
    if not run.paths.output.is_dir():
        return  # never submitted: there is nobody to tell
    try:
        told = notify(
            run, findings, looked_at, snapshot.now, is_whole=is_all and len(looked_at) == len(registry.DETECTORS)
        )
    except (OpsctlError, OSError) as error:
        message(f"opsctl: {run.table.name}: {error}")
        return
    for line in told.lines:
        message(f"opsctl: {run.table.name}: {line}")
