"""`opsctl demo`: everything once, on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from opsctl.cli.export import NEEDED


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep the local cluster running, and print how to use it.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    help="Folder for the runs of the demo [default: ./demo].",
)
def command(keep: bool, folder: Path) -> int:
    """Run a small training with all main commands, on a real Slurm on this machine, in a few minutes.

    Four nodes, a corpus, a GPT on eight processes, the kill switch, and a resume from the saved iteration. Every step
    prints its command. Needs Slurm's daemons (`opsctl local-cluster up` lists the packages). It does not need root or a
    GPU.
    """
    from opsctl.cli.trainer_program import refuse_missing
    from opsctl.local.demo.play import play

    refuse_missing(NEEDED)
    return play(folder, keep)
