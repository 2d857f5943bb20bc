"""`python -m trainer.convert.hf.import_program FOLDER --output CHECKPOINTS`: import a published model.

`opsctl import hf` starts it. The checkpoint has only weights; a training starts from it at iteration 0.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.convert.hf.imported_model import ImportedModel, write_checkpoint
from trainer.convert.workers import run_program
from trainer.core.console import printable
from trainer.formats.checkpoint import exchanged
from trainer.formats.checkpoint.manifest import checkpoint_folders, tag_of
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import printed_json_text
from trainer.recipe.options import BY_KEY
from trainer.recipe.sizes import parameters


def parser() -> argparse.ArgumentParser:
    """Return the program's options; `opsctl import hf` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.convert.hf.import_program",
        description="Import a folder that transformers loads as a checkpoint.",
        allow_abbrev=False,
    )
    result.add_argument("folder", type=Path, help="the model's folder")
    result.add_argument("--output", type=Path, required=True, help="a folder without checkpoints")
    result.add_argument("--make-vocab-size-divisible-by", type=_above_zero, default=128, help="[default: 128]")
    result.add_argument("--dry-run", action="store_true", help="print what would be written")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    return result


def _above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!a} is not a positive integer")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure or refusal, 2 for wrong usage, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    return run_program(lambda: _import(arguments))


def _import(arguments: argparse.Namespace) -> None:
    there = checkpoint_folders(arguments.output)
    if there:
        raise CheckpointError(f"{arguments.output} has {there[0].name} already: give another --output")
    model = ImportedModel(arguments.folder, arguments.make_vocab_size_divisible_by)
    model.refuse_other_output_layer()
    if not arguments.dry_run:
        write_checkpoint(model, arguments.folder, arguments.output)
    size = parameters(model.shape)
    found = exchanged.ImportedModel(
        folder=str((arguments.output / tag_of(0)).absolute()),
        format=model.family.name,
        precision=model.precision,
        parameters=size,
        bytes=size * (4 if model.precision == "fp32" else 2),
        options=_options_to_give(model),
        dry_run=arguments.dry_run,
    )
    if arguments.json:
        sys.stdout.write(printed_json_text("imported", found))
        return
    done = "would be" if arguments.dry_run else "is"
    sys.stderr.write(
        f"opsctl: {printable(found.folder)} {done} this {found.format} model, {found.parameters:,} parameters in "
        f"{found.precision}; a run file that trains it needs\n"
    )
    print("\n".join(_run_file_lines(found.options)))


def _options_to_give(model: ImportedModel) -> dict[str, Any]:
    """Return the trainer's options for this model, without those at their defaults."""
    padded = {"make_vocab_size_divisible_by": model.options["make_vocab_size_divisible_by"]}
    own = {model.precision: True} if model.precision != "fp32" else {}
    return {name: value for name, value in {**model.given, **padded, **own}.items() if value is not False}


def _run_file_lines(options: Mapping[str, Any]) -> list[str]:
    """Return the options in their tables of a run file."""
    lines: list[str] = []
    for table in dict.fromkeys(BY_KEY[name].table for name in options):
        lines.append(f"[{table}]")
        # A JSON text is a TOML basic string. JSON's numbers and booleans are TOML's.
        own = {name: value for name, value in options.items() if BY_KEY[name].table == table}
        lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in own.items()]
    return lines


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
