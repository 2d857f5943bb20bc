"""`opsctl refill`: as many arrays in the queue as the run file says. Called by cron, or by a person."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opsctl.cli.selection import all_runs_option, cluster_option, json_option, run_argument

if TYPE_CHECKING:
    from opsctl.jobs.control.json_output import RefilledRun
    from opsctl.run.config.paths import RunPaths
    from opsctl.run.state.register import KnownRun
    from opsctl.slurm.client import SlurmReader
    from opsctl.slurm.cluster import Cluster


@click.command()
@run_argument
@all_runs_option
@click.option("--dry-run", is_flag=True, help="Print what would be submitted; change nothing.")
@cluster_option
@json_option(refilled="list[opsctl.jobs.control.json_output.RefilledRun]")
@click.pass_context
def command(
    ctx: click.Context,
    run: str | None,
    all_runs: bool,
    dry_run: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Keep [array] keep_queued arrays behind the live one, or start one when nothing is queued.

    Submits the newest published revision, with the array of the last opsctl submit and the nodes of the last chain,
    without one-off arguments. The new jobs are yours. Leaves alone a run that is finished, stopped by the kill switch,
    cancelled since the last submit, or never submitted. Queues no more than is left to train.

    Exits 1 when a person has to act: a job is held, three attempts made no checkpoint, the queue cannot be read.
    """
    from opsctl.core.output import print_json, show_lines

    refill = _Refill(cluster, dry_run)
    done = refill.all() if all_runs else [refill.one(run)]
    if as_json:
        print_json("refilled", done)
    else:
        show_lines(one.text for one in done)
    ctx.exit(1 if any(one.needs_somebody for one in done) else 0)


class _Refill:
    """Refills, with one look at each cluster's queue for all runs of which nothing is missing."""

    def __init__(self, cluster: str | None, dry_run: bool) -> None:
        self.cluster = cluster
        self.dry_run = dry_run
        self._looks: dict[Cluster, SlurmReader] = {}

    def one(self, chosen: str | None) -> RefilledRun:
        """The run that `chosen` means, which this account has from now on used: its poller goes on with it."""
        from opsctl.run.config.locate import locate_run_file, remember_run
        from opsctl.run.state.run_view import glance

        run_file = locate_run_file(chosen)
        seen = glance(str(run_file))
        if not self.dry_run:
            remember_run(seen.table.name, run_file.absolute())
        return self._refilled(seen.table.name, seen.paths)

    def all(self) -> list[RefilledRun]:
        """Every run that is known here. One that fails stops no other."""
        from opsctl.run.state.register import all_runs

        return [self._known(run) for run in all_runs()]

    def _known(self, run: KnownRun) -> RefilledRun:
        from opsctl.core.errors import OpsctlError
        from opsctl.jobs.control.json_output import RefilledRun
        from opsctl.run.state.register import may_act_for, paths_of

        try:
            paths = paths_of(run)
            if may_act_for(run, paths):
                return self._refilled(run.name, paths)
            why = f"not refilled: left to those who have submitted it; opsctl refill --run {run.run_file} joins them"
        except OpsctlError as error:
            return _stuck(run.name, "", str(error))
        text = f"{run.name}: {why}"
        return RefilledRun(
            run=run.name, output="", state="rests", text=text, submitted=[], missing=0, needs_somebody=False
        )

    def _refilled(self, name: str, paths: RunPaths) -> RefilledRun:
        from opsctl.core.errors import OpsctlError, file_problem
        from opsctl.jobs.control.json_output import RefilledRun
        from opsctl.jobs.control.refill import line_of, refill, state_of
        from opsctl.run.state.chosen_cluster import choose_cluster

        try:
            where = choose_cluster(self.cluster, paths)
            done = refill(paths, where, self._look(where), self.dry_run)
        except OpsctlError as error:
            return _stuck(name, str(paths.output), str(error))
        except OSError as error:
            return _stuck(name, str(paths.output), file_problem(error, paths.output))
        return RefilledRun(
            run=name,
            output=str(paths.output),
            state=state_of(done),
            text=line_of(name, done, self.dry_run),
            submitted=[one.chain.chain for one in done.submitted],
            missing=done.decision.arrays,
            needs_somebody=done.needs_somebody,
        )

    def _look(self, cluster: Cluster) -> SlurmReader:
        from functools import partial

        from opsctl.slurm.backends import client_for
        from opsctl.slurm.cache import CachedSlurm

        return self._looks.setdefault(cluster, CachedSlurm(partial(client_for, cluster)))


def _stuck(name: str, output: str, why: str) -> RefilledRun:
    from opsctl.jobs.control.json_output import RefilledRun

    text = f"{name}: not refilled: {why}"
    return RefilledRun(run=name, output=output, state="stuck", text=text, submitted=[], missing=0, needs_somebody=True)
