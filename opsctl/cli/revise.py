"""`opsctl revise`: an edited run file for the tasks already queued."""

from __future__ import annotations

from typing import Any

import click

from opsctl.cli.selection import cluster_option, json_option, run_argument


@click.command()
@run_argument
@click.option("--resubmit", is_flag=True, help="Replace queued tasks if nodes, time or constraint changed.")
@click.option("--dry-run", is_flag=True, help="Print the changes; publish nothing.")
@cluster_option
@json_option(revised="opsctl.jobs.control.json_output.RevisedRun")
def command(
    run: str | None,
    resubmit: bool,
    dry_run: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Publish an edited run file for the queued tasks. Prints the revision's name.

    Queued tasks read the newest revision when they start, so they keep their place in the queue. Slurm fixes nodes,
    time and constraint at submission: if one of these changed, --resubmit submits new tasks, then cancels the old
    queued ones. The running task continues. It submits as many tasks as it cancels, with the
    same extra arguments.

    With opsctl's trainer you may change nodes, tensor- and pipeline-parallel sizes and the micro-batch size: its
    checkpoints load into any layout.
    """
    from opsctl.core.output import message, message_text, print_json, show
    from opsctl.jobs.control.json_output import ChangedValue, RevisedRun
    from opsctl.jobs.control.revise import LAYOUT, revise
    from opsctl.run.config.load import load_run_file
    from opsctl.run.config.locate import locate_run_file
    from opsctl.run.state.chosen_cluster import choose_cluster

    loaded = load_run_file(locate_run_file(run))
    done = revise(loaded, choose_cluster(cluster, loaded.paths), resubmit=resubmit, dry_run=dry_run)
    for warning in done.warnings:
        message(f"warning: {warning}")
    if done.is_same and done.before is not None:
        message(f"nothing differs from revision {done.before.name}")
    for key, (old, new) in done.values.items():
        message(f"{key}: {_shown(old)} -> {_shown(new)}" if key != LAYOUT else f"{key}: {old} -> {new}")
    if done.before is not None and done.difference:
        message_text(done.difference)
    for old_chain, new_chain in done.replaced:
        what = "would be replaced" if new_chain is None else f"replaced by chain {new_chain.chain.chain}"
        message(f"queued tasks of chain {old_chain} {what}")
    if done.revision is not None and not done.is_same:
        message(f"{loaded.file.run.name}: published; every task that starts from now on trains with it")
    if as_json:
        answer = RevisedRun(
            revision=done.revision.name if done.revision else None,
            changed={key: ChangedValue(before=old, after=new) for key, (old, new) in done.values.items()},
            replaced={str(old): new.chain.chain if new else None for old, new in done.replaced},
            dry_run=dry_run,
        )
        print_json("revised", answer)
    elif done.revision is not None:
        show(done.revision.name)


def _shown(value: Any) -> str:
    import json

    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
