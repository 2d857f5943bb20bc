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
    """Write checkpoints in the formats that others read."""


@command.command("hf", cls=LongCommand)
@run_argument
@click.option("--checkpoints", metavar="DIR", help="Another folder of checkpoints than a run's.")
@click.option("--output", metavar="DIR", required=True, help="The model's folder; with --steps the one above.")
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Which checkpoint [default: the latest].")
@click.option("--steps", metavar="A:B:C", help="From A to B every C, each to DIR/global_stepN.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type of the weights; float32 comes from the optimizer's own [default: as saved].",
)
@click.option("--tokenizer", metavar="DIR", help="The tokenizer's folder or file [default: the training's].")
@click.option("--no-tokenizer", is_flag=True, help="Go without a tokenizer.")
@click.option("--name", metavar="NAME", help="The model's name on its card [default: the run's].")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@json_option(exported="list[trainer.formats.checkpoint.exchanged.ExportedModel]")
def hf(run: str | None, checkpoints: str | None, **options: Any) -> int:
    """Write a checkpoint as a folder that Hugging Face transformers loads.

    Weights (safetensors, without the vocabulary's padding), configuration, tokenizer and a card, from a checkpoint of
    any layout. ALiBi with a LayerNorm after the embedding becomes BLOOM, learned positions become GPT-2, rotary ones
    Llama. Other models are refused by name. With --steps, complete folders are skipped.
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
