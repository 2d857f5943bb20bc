"""`python -m trainer.convert.hf.export_program CHECKPOINTS --output DIR`: export checkpoints to transformers.

`opsctl export hf` starts it. Complete folders are not changed. Unfinished output never has its final name.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from trainer.convert.hf.documents import About
from trainer.convert.hf.export import Export, found_latest, found_steps, is_written, planned, steps_range, write
from trainer.convert.output import refuse_without_room
from trainer.convert.workers import run_program
from trainer.core.console import failed, printable
from trainer.core.dtypes import DTYPES_BY_NAME
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
    try:
        steps = steps_range(arguments.steps) if arguments.steps else None
    except ValueError as error:
        return failed(str(error), 2)
    for one, other in (("step", "steps"), ("tokenizer", "no_tokenizer")):
        if getattr(arguments, one) not in (None, False) and getattr(arguments, other):
            return failed(f"--{one} with --{other.replace('_', '-')}: use one of them", 2)
    return run_program(lambda: _export(arguments, steps))


def _export(arguments: argparse.Namespace, steps: range | None) -> None:
    """Plan all exports, then write them one by one."""
    plans = [(target, _planned(found, arguments)) for found, target in _targets(arguments, steps)]
    states = [_state(export, target, among_many=steps is not None) for target, export in plans]
    sizes = [export.bytes for (_, export), state in zip(plans, states, strict=True) if state == "written"]
    refuse_without_room(arguments.output, sum(sizes))
    done = []
    for number, ((target, export), state) in enumerate(zip(plans, states, strict=True), 1):
        if state == "written" and not arguments.dry_run:
            write(export, target)
        model = export.report(target, "would be written" if arguments.dry_run and state == "written" else state)
        done.append(model)
        if not arguments.json:
            _report(model, f"[{number} of {len(plans)}] " if len(plans) > 1 else "")
    if arguments.json:
        sys.stdout.write(printed_json_text("exported", done))


def _targets(arguments: argparse.Namespace, steps: range | None) -> list[tuple[Found, Path]]:
    root, output = arguments.checkpoints, arguments.output
    if steps is not None:
        return [(found, output / found.folder.name) for found in found_steps(root, steps)]
    if arguments.step is not None:
        return [(found, output) for found in found_steps(root, range(arguments.step, arguments.step + 1))]
    return [(found_latest(root), output)]


def _planned(found: Found, arguments: argparse.Namespace) -> Export:
    about = About(arguments.name, arguments.tokenizer, not arguments.no_tokenizer)
    try:
        return planned(found, arguments.dtype, about)
    except CheckpointError as error:
        raise CheckpointError(f"{found.folder.name}: {error}") from None


def _state(export: Export, target: Path, among_many: bool) -> str:
    """Return the action for a folder. Raises CheckpointError if the folder has other contents."""
    if not os.path.lexists(target):
        return "written"
    if among_many and is_written(export, target):
        return "there"
    raise CheckpointError(
        f"{target} exists already{' with other contents' if among_many else ''}: give another --output"
    )


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
