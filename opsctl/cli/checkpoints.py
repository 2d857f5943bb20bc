"""`opsctl checkpoints`: what there is to go on from. Needs no Slurm."""

from __future__ import annotations

import click

from opsctl.cli.selection import json_option, pick, run_argument


@click.group()
def command() -> None:
    """Look at a run's checkpoints."""


@command.command("list")
@run_argument
@json_option
def list_(run_argument: str | None, run: str | None, as_json: bool) -> None:
    """List every checkpoint: iteration, samples, size, whether it is complete, which one is the latest.

    Complete is one whose manifest is whole and whose files all have their sizes; their checksums are the trainer's to
    check when it loads.
    """
    from opsctl.checkpoints.inventory import latest_problem
    from opsctl.checkpoints.listing import checkpoint_table, listed
    from opsctl.errors import OpsctlError
    from opsctl.output import message, print_json, show_lines
    from opsctl.records.run_view import glance
    from trainer.formats.errors import CheckpointError

    checkpoints = glance(pick(run_argument, run)).paths.checkpoints
    try:
        found = listed(checkpoints)
    except CheckpointError as error:
        raise OpsctlError(str(error)) from None
    if as_json:
        print_json("checkpoints", found)
    elif found:
        show_lines(checkpoint_table(found))
    else:
        message("no checkpoints yet")
    if problem := latest_problem(checkpoints):
        message(f"opsctl: {problem}")
