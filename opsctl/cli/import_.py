"""`opsctl import`: what others have published, as a checkpoint. Needs no Slurm."""

from __future__ import annotations

from typing import Any

import click

from opsctl.cli.export import NEEDED
from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import json_option


@click.group()
def command() -> None:
    """Import a published model as a checkpoint."""


@command.command("hf", cls=LongCommand, goes_on=False)
@click.argument("folder", metavar="FOLDER")
@click.option("--output", metavar="DIR", required=True, help="Folder for the checkpoint, in a new run or elsewhere.")
@click.option(
    "--make-vocab-size-divisible-by",
    type=click.IntRange(min=1),
    metavar="N",
    help="Pad the vocabulary to a multiple of N [default: 128].",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written; write nothing.")
@json_option(imported="trainer.formats.checkpoint.exchanged.ImportedModel")
def hf(folder: str, **options: Any) -> int:
    """Import a Hugging Face model as the first checkpoint.

    FOLDER has config.json and safetensors files of a BLOOM, GPT-2 or Llama model. Prints what a run file needs for this
    model. The checkpoint contains only weights and loads into every layout.
    """
    from opsctl.cli.trainer_program import option_words, run_trainer_program

    words = [*option_words(options), "--", folder]
    return run_trainer_program("trainer.convert.hf.import_program", words, NEEDED)
