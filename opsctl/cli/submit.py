"""`opsctl submit`: a chain of array tasks, one at a time, never beside a live one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opsctl.cli.selection import CommandWithRest, cluster_option, json_option, rest, run_argument

if TYPE_CHECKING:
    from opsctl.jobs.control.send_chain import Submitted


@click.command(cls=CommandWithRest)
@run_argument
@click.option("--array", metavar="A", help="The tasks, as sbatch takes them: 1-3%1 [default: the run file's].")
@click.option("--after", metavar="auto|JOB", help="Start after this job has ended; auto: after the run's live chain.")
@click.option("--begin", metavar="TIME", help="Start no earlier than this time, as sbatch takes it: 18:00, now+2hours.")
@click.option("--exclude", metavar="NODES", help="Also exclude these nodes for this chain: x[03-04],x09.")
@click.option("--nodes", type=int, metavar="N", help="Use another number of nodes for this chain only.")
@click.option("--dry-run", is_flag=True, help="Print the script that would be submitted; change nothing.")
@cluster_option
@json_option(
    submitted="opsctl.jobs.control.json_output.PrintedChain",
    would_submit=("opsctl.jobs.control.json_output.WouldSubmit", "with `--dry-run`"),
)
def command(
    run: str | None,
    array: str | None,
    after: str | None,
    begin: str | None,
    exclude: str | None,
    nodes: int | None,
    dry_run: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Submit a chain of array tasks that resume from each other's checkpoints.

    Prints the job id. Fails if a chain of this run, of any user, is queued or running; --after auto queues the
    new chain behind it. Arguments after -- go to the training program of this chain only. A later revision does not
    remove them.
    """
    import msgspec

    from opsctl.core.output import message, print_json, show, show_text
    from opsctl.jobs.control.json_output import PrintedChain, WouldSubmit
    from opsctl.jobs.control.send_chain import ChainOptions
    from opsctl.jobs.control.submit import submit, submit_dry
    from opsctl.run.config.load import load_run_file
    from opsctl.run.config.locate import locate_run_file
    from opsctl.run.state.chosen_cluster import cluster_to_submit_to

    loaded = load_run_file(locate_run_file(run))
    where = cluster_to_submit_to(cluster, loaded.paths)
    options = ChainOptions(array=array, after=after, begin=begin, exclude=exclude, nodes=nodes, arguments=rest())
    if dry_run:
        script, warnings = submit_dry(loaded, where, options)
        for warning in warnings:
            message(f"warning: {warning}")
        if as_json:
            print_json("would_submit", WouldSubmit(script=script, warnings=list(warnings)))
        else:
            show_text(script)
        return
    done = submit(loaded, where, options)
    for line in _story(done, loaded.file.run.name, run):
        message(line)
    if as_json:
        further = [one.chain.chain for one in done.further]
        chain, name = msgspec.structs.asdict(done.chain), loaded.file.run.name
        print_json("submitted", PrintedChain(**chain, run=name, warnings=list(done.warnings), further=further))
    else:
        for one in done.all:
            show(str(one.chain.chain))


def _story(done: Submitted, name: str, chosen: str | None) -> list[str]:
    from opsctl.slurm.arrays import count_tasks

    chain = done.chain
    tasks = count_tasks(chain.array)
    waits = f" behind {', '.join(chain.after)}" if chain.after else ""
    begins = f", not before {chain.begin}" if chain.begin else ""
    news = "published" if done.is_new_revision else "as published before"
    which = f" {chosen}" if chosen else ""
    further = [
        f"{name}: chain {one.chain} of {count_tasks(one.array)} more ({one.array}) behind it: "
        "one array of this Slurm has no more tasks"
        for one in (more.chain for more in done.further)
    ]
    return [
        *(f"warning: {warning}" for warning in done.warnings),
        f"{name}: chain {chain.chain} of {tasks} task{'s' if tasks > 1 else ''} ({chain.array}){waits}{begins}, "
        f"revision {done.revision.name} ({news})",
        *further,
        f"next: opsctl status{which}; opsctl logs -f{which}",
    ]
