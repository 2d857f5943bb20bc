"""`python -m trainer.convert.convert_program FOLDER --to universal|native --output DIR`: convert a checkpoint.

It converts between this trainer's checkpoints, of any layout, and DeepSpeed's universal ones. `opsctl checkpoints
convert` starts it. Unfinished output never has its final name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.convert.workers import run_program
from trainer.core.console import printable
from trainer.core.preload import set_process_defaults
from trainer.formats.checkpoint.exchanged import ConvertedCheckpoint
from trainer.formats.json_text import printed_json_text

_UNIVERSAL, _NATIVE = "universal", "native"
_LAYOUT = {"tensor": "tensor_parallel", "pipeline": "pipeline_parallel", "data": "data_parallel"}


def parser() -> argparse.ArgumentParser:
    """Return the program's options; `opsctl checkpoints convert` has the same."""
    result = argparse.ArgumentParser(
        "python -m trainer.convert.convert_program",
        description="Convert checkpoints to DeepSpeed's universal format and back.",
        allow_abbrev=False,
    )
    result.add_argument("folder", type=Path, help="a checkpoint, or a folder that names its latest")
    result.add_argument("--to", choices=[_UNIVERSAL, _NATIVE], required=True)
    result.add_argument("--output", type=Path, required=True, help="the new folder")
    for option in _LAYOUT.values():
        name = option.replace("_", "-")
        result.add_argument(f"--{name}", type=int, metavar="N", help="of the checkpoint to write [default: 1]")
    result.add_argument("--workers", type=int, help="processes [default: one per core, at most 16]")
    result.add_argument("--dry-run", action="store_true", help="print what would be written")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    return result


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure or refusal, 2 for wrong usage, 130 if interrupted."""
    own = parser()
    arguments = own.parse_args(argv)
    layout = {part: getattr(arguments, option) for part, option in _LAYOUT.items()}
    if arguments.to == _UNIVERSAL and any(layout.values()):
        own.error("a universal checkpoint has no layout: leave out --tensor-parallel and the others")
    if any(value is not None and value < 1 for value in (*layout.values(), arguments.workers)):
        own.error("--workers and each part of a layout must be at least 1")
    return run_program(lambda: _convert(arguments, {part: value or 1 for part, value in layout.items()}))


def _convert(arguments: argparse.Namespace, layout: Mapping[str, int]) -> None:
    set_process_defaults(2)  # processes are forked after torch is imported, so it must not have started threads
    from trainer.convert.conversion import to_native, to_universal
    from trainer.convert.output import refuse_taken
    from trainer.convert.sources import open_source
    from trainer.convert.workers import default_workers

    refuse_taken(arguments.output)
    source = open_source(arguments.folder)
    workers = arguments.workers or default_workers()
    if arguments.to == _UNIVERSAL:
        done = to_universal(source, arguments.output, workers, arguments.dry_run)
    else:
        done = to_native(source, layout, arguments.output, workers, arguments.dry_run)
    if arguments.json:
        sys.stdout.write(printed_json_text("converted", done))
    else:
        print(report(done))


def report(done: ConvertedCheckpoint) -> str:
    """Return the report for people."""
    layout = f"TP {done.layout['tensor']} x PP {done.layout['pipeline']} x DP {done.layout['data']}"
    size = f"{done.bytes / 1e9:.3g} GB"
    written = f"needs {size}" if done.dry_run else f"{size} in {done.files:,} files"
    rows = [
        ("source", printable(done.source)),
        ("output", printable(done.output)),
        ("iteration", f"{done.iteration:,}, {done.consumed_train_samples:,} samples"),
        ("parameters", f"{done.parameters:,}, {done.precision}"),
        ("layout", layout if done.to == _NATIVE else f"none (was {layout})"),
        ("would write" if done.dry_run else "written", written),
    ]
    return "\n".join(f"{name:<11} {value}" for name, value in rows)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
