"""`python -m trainer.convert.hf.export_program CHECKPOINTS --output DIR`: export checkpoints to transformers.

`opsctl export hf` starts it. Complete folders are not changed. Unfinished output never has its final name.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from trainer.convert.command_line import run_program
from trainer.convert.hf.documents import About
from trainer.convert.hf.export import (
    FILE_BYTES,
    Export,
    found_latest,
    found_steps,
    is_written,
    planned,
    planned_repair,
    repair,
    steps_range,
    write,
)
from trainer.convert.hf.families import FAMILIES
from trainer.convert.output import refuse_without_room
from trainer.core.console import failed, printable
from trainer.core.dtypes import DTYPES_BY_NAME
from trainer.formats.byte_sizes import size_in_bytes
from trainer.formats.checkpoint.exchanged import ExportedModel
from trainer.formats.checkpoint.manifest import Found
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import printed_json_text


def parser() -> argparse.ArgumentParser:
    """Return the program's options; `opsctl export hf` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.convert.hf.export_program",
        description="Export checkpoints to folders that transformers loads.",
        allow_abbrev=False,
    )
    result.add_argument("checkpoints", type=Path, help="folder with global_stepN folders")
    result.add_argument("--output", type=Path, required=True, help="the model's folder; with --steps the one above")
    result.add_argument("--step", type=int, help="iteration of the checkpoint [default: the latest one's]")
    result.add_argument("--steps", help="FIRST:LAST:EVERY, each to OUTPUT/global_stepN")
    result.add_argument("--format", choices=list(FAMILIES), help="family of models [default: the one that fits]")
    result.add_argument("--dtype", choices=list(DTYPES_BY_NAME), help="type of the weights [default: as saved]")
    result.add_argument("--shard-size", help="most of one file's weights [default: 5GB]")
    result.add_argument("--tokenizer", type=Path, help="the tokenizer [default: the training's]")
    result.add_argument("--no-tokenizer", action="store_true", help="export without a tokenizer")
    result.add_argument("--name", help="the model's name on its card")
    result.add_argument("--metadata-only", action="store_true", help="write all files except the weights, next to them")
    result.add_argument("--dry-run", action="store_true", help="print what would be written")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    return result


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure or refusal, 2 for wrong usage, 130 if interrupted."""
    arguments = parser().parse_args(argv)
    try:
        wanted = steps_range(arguments.steps) if arguments.steps else None
        arguments.shard_bytes = size_in_bytes(arguments.shard_size) if arguments.shard_size else FILE_BYTES
        _refuse_contradictions(arguments)
    except ValueError as error:
        return failed(str(error), 2)
    return run_program(lambda: _export(arguments, wanted))


def _refuse_contradictions(arguments: argparse.Namespace) -> None:
    if arguments.steps and arguments.step is not None:
        raise ValueError("--step with --steps: use one of them")
    if arguments.tokenizer and arguments.no_tokenizer:
        raise ValueError("--tokenizer with --no-tokenizer: use one of them")
    if arguments.metadata_only and arguments.dtype:
        raise ValueError("--dtype with --metadata-only: the weights are not written, leave it out")


def _export(arguments: argparse.Namespace, steps: range | None) -> None:
    """Plan all exports, then write them one by one."""
    targets = _targets(arguments, steps)
    plans = [(target, _planned(found, target, arguments)) for found, target in targets]
    states = [_state(export, target, arguments, among_many=steps is not None) for target, export in plans]
    sizes = [export.bytes for (_, export), state in zip(plans, states, strict=True) if state == "written"]
    refuse_without_room(arguments.output, sum(sizes))
    done = []
    for number, ((target, export), state) in enumerate(zip(plans, states, strict=True), 1):
        if state != "there" and not arguments.dry_run:
            (repair if state == "repaired" else write)(export, target)
        said = export.said(target, f"would be {state}" if arguments.dry_run and state != "there" else state)
        done.append(said)
        if not arguments.json:
            _report(said, f"[{number} of {len(plans)}] " if len(plans) > 1 else "")
    if arguments.json:
        sys.stdout.write(printed_json_text("exported", done))


def _targets(arguments: argparse.Namespace, steps: range | None) -> list[tuple[Found, Path]]:
    root, output = arguments.checkpoints, arguments.output
    if steps is not None:
        return [(found, output / found.folder.name) for found in found_steps(root, steps)]
    if arguments.step is not None:
        return [(found, output) for found in found_steps(root, range(arguments.step, arguments.step + 1))]
    return [(found_latest(root), output)]


def _planned(found: Found, target: Path, arguments: argparse.Namespace) -> Export:
    about = About(arguments.name, arguments.tokenizer, not arguments.no_tokenizer)
    try:
        if arguments.metadata_only:
            return planned_repair(found, target, arguments.format, about)
        return planned(found, arguments.format, arguments.dtype, arguments.shard_bytes, about)
    except CheckpointError as error:
        raise CheckpointError(f"{found.folder.name}: {error}") from None


def _state(export: Export, target: Path, arguments: argparse.Namespace, among_many: bool) -> str:
    """Return the action for a folder. Raises CheckpointError if the folder has other contents."""
    if arguments.metadata_only:
        return "repaired"
    if not os.path.lexists(target):
        return "written"
    if among_many and is_written(export, target):
        return "there"
    what = "exists already" + (" with other contents" if among_many else "")
    raise CheckpointError(f"{target} {what}: give another --output, or --metadata-only to repair all but the weights")


def _report(model: ExportedModel, place: str) -> None:
    files = "1 file" if model.files == 1 else f"{model.files} files"
    print(
        printable(
            f"{place}global_step{model.iteration}: {model.state}: {model.folder} ({model.format}, {model.dtype}, "
            f"{model.parameters:,} parameters, {files}, {model.bytes / 1e9:.3g} GB)"
        ),
        flush=True,
    )
    for notice in model.notices:
        sys.stderr.write(f"opsctl: global_step{model.iteration}: {notice}\n")


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
