"""`opsctl refill`: as many arrays in the queue as the run file says. Called by cron, or by a person."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import click

from opsctl.cli.selection import all_runs_option, cluster_option, json_option, run_argument
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.output import print_json, show_lines
from opsctl.jobs.control.json_output import RefilledRun
from opsctl.jobs.control.refill import line_of, refill, state_of
from opsctl.run.config.locate import locate_run_file, remember_run
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.chosen_cluster import choose_cluster
from opsctl.run.state.register import all_runs, may_act_for, paths_of
from opsctl.run.state.run_view import glance
from opsctl.slurm.backends import client_for
from opsctl.slurm.cache import CachedSlurm
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
    """Submit chains until [array] keep_queued of them wait in the queue.

    The scheduler calls it, so that the queue never runs dry before the training ends. Each new chain has the size of
    the last opsctl submit and the nodes of the last chain; it uses the newest revision, and no extra arguments. You own
    the new jobs. It submits nothing for a run that is finished, stopped by the kill switch, cancelled since the last
    submit, or never submitted, and no more tasks than the rest of the training needs.

    Exits 1 if a person must act: a job is held (Slurm does not start it until it is released), three attempts made no
    checkpoint, or the queue cannot be read.
    """
    done = list(_all_runs(cluster, dry_run)) if all_runs else [_one_run(run, cluster, dry_run)]
    if as_json:
        print_json("refilled", done)
    else:
        show_lines(one.text for one in done)
    ctx.exit(1 if any(one.needs_somebody for one in done) else 0)


def _one_run(chosen: str | None, cluster: str | None, dry_run: bool) -> RefilledRun:
    """Refill one run; from now on the account's cron refills it too."""
    run_file = locate_run_file(chosen)
    seen = glance(str(run_file))
    if not dry_run:
        remember_run(seen.table.name, run_file.absolute())
    return _refilled(seen.table.name, seen.paths, cluster, dry_run, {})


def _all_runs(cluster: str | None, dry_run: bool) -> Iterator[RefilledRun]:
    """Refill every known run. One that fails stops no other, and each cluster is asked once for all runs."""
    snapshots: dict[Cluster, SlurmReader] = {}
    for run in all_runs():
        try:
            paths = paths_of(run)
            if may_act_for(run, paths):
                yield _refilled(run.name, paths, cluster, dry_run, snapshots)
                continue
        except OpsctlError as error:
            yield _nothing_done(run.name, "", "stuck", str(error))
            continue
        why = f"left to those who have submitted it; opsctl refill --run {run.run_file} joins them"
        yield _nothing_done(run.name, "", "rests", why)


def _refilled(
    name: str, paths: RunPaths, cluster: str | None, dry_run: bool, snapshots: dict[Cluster, SlurmReader]
) -> RefilledRun:
    try:
        where = choose_cluster(cluster, paths)
        client = snapshots.setdefault(where, CachedSlurm(partial(client_for, where)))
        done = refill(paths, where, client, dry_run)
    except OpsctlError as error:
        return _nothing_done(name, str(paths.output), "stuck", str(error))
    except OSError as error:
        return _nothing_done(name, str(paths.output), "stuck", file_problem(error, paths.output))
    return RefilledRun(
        run=name,
        output=str(paths.output),
        state=state_of(done),
        text=line_of(name, done, dry_run),
        submitted=[one.chain.chain for one in done.submitted],
        missing=done.decision.arrays,
        needs_somebody=done.needs_somebody,
    )


def _nothing_done(name: str, output: str, state: str, why: str) -> RefilledRun:
    text, is_stuck = f"{name}: not refilled: {why}", state == "stuck"
    return RefilledRun(
        run=name, output=output, state=state, text=text, submitted=[], missing=0, needs_somebody=is_stuck
    )
