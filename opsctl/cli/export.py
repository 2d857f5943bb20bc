"""`opsctl export`: checkpoints in the formats that others read. Needs no Slurm."""

from __future__ import annotations

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
@click.option("--format", "family", type=click.Choice(["bloom", "gpt2", "llama"]), help="[default: the one that fits]")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type of the weights; float32 comes from the optimizer's own [default: as saved].",
)
@click.option("--shard-size", metavar="SIZE", help="Most of one file's weights, e.g. 500MiB [default: 5GB].")
@click.option("--tokenizer", metavar="DIR", help="The tokenizer's folder or file [default: the training's].")
@click.option("--no-tokenizer", is_flag=True, help="Go without a tokenizer.")
@click.option("--name", metavar="NAME", help="The model's name on its card [default: the run's].")
@click.option("--metadata-only", is_flag=True, help="Write all but the weights anew, beside them.")
@click.option("--dry-run", is_flag=True, help="Say what would be written; write nothing.")
@json_option
def hf(
    run: str | None,
    checkpoints: str | None,
    output: str,
    step: int | None,
    steps: str | None,
    family: str | None,
    dtype: str | None,
    shard_size: str | None,
    tokenizer: str | None,
    no_tokenizer: bool,
    name: str | None,
    metadata_only: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Write a checkpoint as a folder that Hugging Face transformers loads.

    Weights (safetensors, without the vocabulary's padding), configuration, tokenizer and a card, from a checkpoint of
    any layout. ALiBi with a LayerNorm after the embedding becomes BLOOM, learned positions become GPT-2; what these
    cannot express is refused by name. With --steps, folders that are whole already are left alone.
    """
    from opsctl.cli.trainer_program import run_trainer_program
    from opsctl.run.state.run_view import glance

    if checkpoints is None:
        chosen = glance(run)
        checkpoints, name = str(chosen.paths.checkpoints), name or chosen.table.name
    elif run:
        raise click.UsageError("a run and --checkpoints given: the run has its own")
    values = {
        "--output": output,
        "--step": step,
        "--steps": steps,
        "--format": family,
        "--dtype": dtype,
        "--shard-size": shard_size,
        "--tokenizer": tokenizer,
        "--name": name,
    }
    arguments = [f"{option}={value}" for option, value in values.items() if value is not None]
    arguments += ["--no-tokenizer"] * no_tokenizer + ["--metadata-only"] * metadata_only
    arguments += ["--dry-run"] * dry_run + ["--json"] * as_json + ["--", checkpoints]
    return run_trainer_program("trainer.convert.hf.export_program", arguments, NEEDED)
