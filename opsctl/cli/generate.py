"""`opsctl generate`: what a checkpoint's model says. Needs no Slurm and no GPU."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from opsctl.cli.export import NEEDED
from opsctl.cli.long_command import LongCommand
from opsctl.cli.selection import json_option, run_argument


@click.command("generate", cls=LongCommand, goes_on=False)
@partial(run_argument, metavar="[RUN|CHECKPOINT]")
@click.option("--prompt", metavar="TEXT", multiple=True, required=True, help="Text to continue (repeatable).")
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="Iteration of the checkpoint [default: the latest]."
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Largest number of tokens to add.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="Sampling temperature; 0 always takes the most likely token.",
)
@click.option(
    "--top-k", type=click.IntRange(min=0), default=0, help="Sample from the K most likely tokens; 0 means all."
)
@click.option(
    "--seed", type=click.IntRange(min=0, max=(1 << 63) - 1), default=1, show_default=True, help="Seed for sampling."
)
@click.option("--tokenizer", metavar="DIR", help="Folder or file of the tokenizer [default: the training's].")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Data type of the weights [default: float32; on a GPU as saved].",
)
@json_option(generated="list[trainer.formats.checkpoint.exchanged.GeneratedText]")
def command(run: str | None, step: int | None, **options: Any) -> int:
    """Continue a text with a checkpoint's model.

    CHECKPOINT is a folder global_stepN of any layout. The model runs in one process, on a GPU if there is one, and
    needs memory for all weights. The text stops at the end of a document. The same command gives the same text.
    """
    from opsctl.cli.trainer_program import option_words, run_trainer_program

    place, named_step = _place(run)
    if named_step is not None and step not in (None, named_step):
        raise click.UsageError(f"--step {step} cannot be combined with a checkpoint ({run})")
    options["step"] = named_step if named_step is not None else step
    return run_trainer_program("trainer.generation.program", [*option_words(options), "--", str(place)], NEEDED)


def _place(run: str | None) -> tuple[Path, int | None]:
    """Return the folder of checkpoints, and the iteration if a single checkpoint was named."""
    from opsctl.run.state.run_view import glance
    from trainer.formats.checkpoint.manifest import iteration_of

    if run is not None:
        named = Path(run).absolute()
        iteration = iteration_of(named.name)
        if iteration is not None and named.is_dir():
            return named.parent, iteration
        if (named / "latest").is_file():
            return named, None
    return glance(run).paths.checkpoints, None
