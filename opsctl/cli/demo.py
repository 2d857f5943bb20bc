"""`opsctl demo`: everything once, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from opsctl.cli.export import NEEDED


@click.command("demo")
@click.option("--keep", is_flag=True, help="Leave the cluster up, and say how to play with it.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    help="Where the run folders go [default: ./demo].",
)
def command(keep: bool, folder: Path) -> int:
    """The main job through all of opsctl, on a real Slurm on this machine, in a few minutes.

    Four nodes, a corpus, a GPT over eight processes, the kill switch, and on from the very iteration saved. Every step
    shows the command that it runs. Needs Slurm's daemons (`opsctl local-cluster up` says which packages), no root and
    no GPU.
    """
    from opsctl.cli.trainer_program import refuse_missing
    from opsctl.local.demo.play import play

    refuse_missing(NEEDED)
    return play(folder, keep)
