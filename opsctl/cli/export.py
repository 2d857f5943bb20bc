"""`opsctl export`: checkpoints in the formats that others read. Needs no Slurm."""

from __future__ import annotations

from typing import Any

import click

from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import json_option, run_argument

#: What the trainer's programs for other formats import.
NEEDED = ("torch", "deepspeed", "numpy", "safetensors", "tokenizers", "xxhash", "rich")


@click.group()
def command() -> None:
    """Export checkpoints to the formats of other programs."""


@command.command("hf", cls=LongCommand)
@run_argument
@click.option("--checkpoints", metavar="DIR", help="A folder of checkpoints that belongs to no run.")
@click.option("--output", metavar="DIR", required=True, help="Folder of the model.")
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="Iteration of the checkpoint [default: the latest]."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Data type of the weights; float32 uses the optimizer's copy [default: as saved].",
)
@click.option("--tokenizer", metavar="DIR", help="The tokenizer's folder or file [default: the training's].")
@click.option("--no-tokenizer", is_flag=True, help="Export without a tokenizer.")
@click.option("--name", metavar="NAME", help="Name of the model on its card [default: the run's].")
@click.option("--dry-run", is_flag=True, help="Print what would be written; write nothing.")
@json_option(exported="list[trainer.formats.checkpoint.exchanged.ExportedModel]")
def hf(run: str | None, checkpoints: str | None, **options: Any) -> int:
    """Export a checkpoint as a Hugging Face model folder.

    Writes weights (safetensors, without the vocabulary's padding), configuration, tokenizer and model card, from any
    layout. Models with ALiBi and a LayerNorm after the embedding become BLOOM, models with learned positions GPT-2, and
    models with rotary positions Llama. A model that none of them can express is refused.
    """
    from opsctl.cli.trainer_program import option_words, run_trainer_program
    from opsctl.run.state.run_view import glance

    if checkpoints is None:
        chosen = glance(run)
        checkpoints, options["name"] = str(chosen.paths.checkpoints), options["name"] or chosen.table.name
    elif run:
        raise click.UsageError("a run and --checkpoints given: the run has its own")
    words = [*option_words(options), "--", checkpoints]
    return run_trainer_program("trainer.convert.hf.export_program", words, NEEDED)
