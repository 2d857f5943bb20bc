"""`opsctl cancel`: the owner's own jobs of a run."""

from __future__ import annotations

import click

from opsctl.cli.selection import cluster_option, json_option, run_argument


@click.command()
@run_argument
@click.option("--queued", is_flag=True, help="Cancel only jobs that have not started.")
@click.option("--dry-run", is_flag=True, help="Print what would be cancelled; change nothing.")
@cluster_option
@json_option(cancelled="opsctl.jobs.control.json_output.CancelledJobs")
def command(
    run: str | None,
    queued: bool,
    dry_run: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Cancel your own jobs of a run. Running jobs end at once, without saving.

    Nothing is saved: training since the last checkpoint is lost. To save first, use opsctl kill-switch trigger. Jobs of
    other users are listed and left alone. Prints the ids of the cancelled jobs.
    """
    from opsctl.core.output import message, print_json, show_lines
    from opsctl.jobs.control.cancel import advice, advice_on_unseen, cancel
    from opsctl.jobs.control.json_output import CancelledJobs
    from opsctl.jobs.control.overlap import describe
    from opsctl.run.state.chosen_cluster import choose_cluster
    from opsctl.run.state.run_view import glance

    seen = glance(run)  # the run file may be in the middle of an edit
    name = seen.table.name
    where = choose_cluster(cluster, seen.paths)
    done = cancel(seen.paths, name, where, queued_only=queued, dry_run=dry_run)
    if done.jobs:
        message(f"{name}: {'would cancel' if dry_run else 'cancelled'} {describe(done.jobs)}")
    else:
        message(f"{name}: nothing of yours is {'queued' if queued else 'in the queue'}")
    if done.others:
        message(f"{name}: {advice(done.others)}")
    if done.unseen:
        message(f"{name}: {advice_on_unseen(done.unseen)}")
    ids = [job.display_id for job in done.jobs]
    if as_json:
        left = [job.display_id for job in done.others]
        unseen = [str(one.array_job_id) for one in done.unseen if one.array_job_id]
        print_json("cancelled", CancelledJobs(ids=ids, left=left, unseen=unseen, dry_run=dry_run))
    else:
        show_lines(ids)
