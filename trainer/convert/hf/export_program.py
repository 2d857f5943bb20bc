"""`python -m trainer.convert.hf.export_program CHECKPOINTS --output DIR`: export a checkpoint to transformers.

`opsctl export hf` starts it. Unfinished output never has its final name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainer.convert.hf.documents import About
from trainer.convert.hf.export import found_checkpoint, planned, write
from trainer.convert.output import refuse_taken, refuse_without_room
from trainer.convert.workers import run_program
from trainer.core.console import failed, printable
from trainer.core.dtypes import DTYPES_BY_NAME
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import printed_json_text


def parser() -> argparse.ArgumentParser:
    """Return the program's options; `opsctl export hf` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.convert.hf.export_program",
        description="Export a checkpoint to a folder that transformers loads.",
        allow_abbrev=False,
    )
    result.add_argument("checkpoints", type=Path, help="folder with global_stepN folders")
    result.add_argument("--output", type=Path, required=True, help="the model's folder")
    result.add_argument("--step", type=int, help="iteration of the checkpoint [default: the latest one's]")
    result.add_argument("--dtype", choices=list(DTYPES_BY_NAME), help="type of the weights [default: as saved]")
    result.add_argument("--tokenizer", type=Path, help="the tokenizer [default: the training's]")
    result.add_argument("--no-tokenizer", action="store_true", help="export without a tokenizer")
    result.add_argument("--name", help="the model's name on its card")
    result.add_argument("--dry-run", action="store_true", help="print what would be written")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    return result


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure or refusal, 2 for wrong usage, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    if arguments.tokenizer is not None and arguments.no_tokenizer:
        return failed("--tokenizer with --no-tokenizer: use one of them", 2)
    return run_program(lambda: _export(arguments))


def _export(arguments: argparse.Namespace) -> None:
    target, found = arguments.output, found_checkpoint(arguments.checkpoints, arguments.step)
    about = About(arguments.name, arguments.tokenizer, not arguments.no_tokenizer)
    try:
        export = planned(found, arguments.dtype, about)
    except CheckpointError as error:
        raise CheckpointError(f"{found.folder.name}: {error}") from None
    refuse_taken(target)
    refuse_without_room(target, export.bytes)
    if not arguments.dry_run:
        write(export, target)
    model = export.report(target, "would be written" if arguments.dry_run else "written")
    if arguments.json:
        sys.stdout.write(printed_json_text("exported", [model]))
        return
    files = "1 file" if model.files == 1 else f"{model.files} files"
    print(
        printable(
            f"global_step{model.iteration}: {model.state}: {model.folder} ({model.format}, {model.dtype}, "
            f"{model.parameters:,} parameters, {files}, {model.bytes / 1e9:.3g} GB)"
        )
    )
    for notice in model.notices:
        sys.stderr.write(f"opsctl: global_step{model.iteration}: {notice}\n")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
