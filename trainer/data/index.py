"""`python -m trainer.data.index --world-size N -- OPTIONS`: build the sample orders of a training ahead.

OPTIONS are those of `trainer.pretrain_gpt`. The program calls the training's own code with the lengths that the
training would use if it started now. The training then finds all orders and builds none. Existing orders are not
changed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainer.core.console import printable
from trainer.data.build import build_datasets
from trainer.data.index_cache import Arrays, IndexCache
from trainer.data.program import report_step, run_program
from trainer.formats.checkpoint.starting import manifest_at_start, parse_to_start
from trainer.formats.data.data_inspected import IndexedData, KeptIndex
from trainer.formats.json_text import printed_json_text
from trainer.recipe.lengths import BEGINNING, Lengths
from trainer.recipe.options import Options


def parser() -> argparse.ArgumentParser:
    """Return the program's options."""
    result = argparse.ArgumentParser(
        "python -m trainer.data.index",
        description="Build the sample orders of a training before it starts.",
        allow_abbrev=False,
    )
    result.add_argument("--world-size", type=int, required=True, help="the number of ranks of the training")
    result.add_argument("--dry-run", action="store_true", help="print what would be built")
    result.add_argument("--json", action="store_true", help="print JSON with schema_version")
    result.add_argument("--steps-to", type=int, metavar="FD", help="write a byte to this descriptor after each order")
    result.add_argument("options", nargs="*", metavar="OPTION", help="after --: the options of the training")
    return result


def index(options: Options, dry_run: bool, report: Callable[[KeptIndex], None]) -> IndexedData:
    """Build the missing orders. report: called with each order as soon as it is known.

    Raises DataError, CheckpointError if the checkpoint to resume from is unknown, ValueError without a length.
    """
    manifest = manifest_at_start(options)
    wanted = Lengths.of(options, manifest or BEGINNING, manifest.consumed_valid_samples if manifest else 0)
    seen: dict[tuple[str, str], KeptIndex] = {}

    def report_one(key: tuple[str, str], one: KeptIndex) -> None:
        if key not in seen:
            seen[key] = one
            report(one)

    build_datasets(
        options,
        wanted.samples_to_read,
        wanted.valid_samples,
        wanted.test_samples,
        cache=lambda folders: _ReportingCache(folders, dry_run, report_one),
    )
    return IndexedData(
        train_samples=wanted.samples_to_read,
        valid_samples=wanted.valid_samples,
        test_samples=wanted.test_samples,
        iteration=manifest.iteration if manifest else 0,
        indices=list(seen.values()),
        dry_run=dry_run,
    )


class _ReportingCache(IndexCache):
    """The training's cache, which reports each request; in a dry run it builds nothing."""

    def __init__(
        self, folders: list[Path], dry_run: bool, report: Callable[[tuple[str, str], KeptIndex], None]
    ) -> None:
        super().__init__(folders)
        self._dry_run, self._report, self._first = dry_run, report, str(folders[0])

    def load_or_build(self, description: Mapping[str, Any], build: Callable[[], Arrays]) -> Arrays:
        """See `IndexCache.load_or_build`. In a dry run, arrays that would be built are empty."""
        state, kept = "there", self.kept(description)
        if kept is None and self._dry_run:
            state = "to be built"
            arrays: Arrays = defaultdict(lambda: np.empty((0, 2), np.int64))
        else:
            arrays = super().load_or_build(description, build)
        if kept is None and not self._dry_run:
            kept = self.kept(description)
            state = "not kept" if kept is None else "built"
        one = KeptIndex(
            data=description["data"]["prefix"] if "data" in description else None,
            samples=description["samples"],
            state=state,
            listing=None if kept is None else str(kept[0].absolute()),
            bytes=sum(array.nbytes for array in arrays.values()),
        )
        self._report((self._first, repr(description)), one)
        return arrays


def main(argv: list[str] | None = None) -> int:
    """Return 0 on success, 1 after a failure, 2 for wrong usage or data, 130 if interrupted."""
    arguments = parser().parse_args(argv)

    def work() -> int:
        options = parse_to_start(arguments.options, arguments.world_size)
        done = index(options, arguments.dry_run, lambda one: _report(one, arguments.json, arguments.steps_to))
        if arguments.json:
            sys.stdout.write(printed_json_text("indexed", done))
        return 1 if any(one.state == "not kept" for one in done.indices) else 0

    return run_program(work, lambda: "complete orders are kept")


def _report(one: KeptIndex, as_json: bool, steps_to: int | None) -> None:
    if not as_json:
        print(_line(one), flush=True)
    if one.state == "built":
        report_step(steps_to)


def _line(one: KeptIndex) -> str:
    what = "a blend" if one.data is None else printable(one.data)
    samples = "an epoch" if one.samples is None else f"{one.samples:,} samples"
    where = f", {one.bytes / 1e6:,.1f} MB, {printable(one.listing)}" if one.listing else ""
    return f"{one.state}: {samples} of {what}{where}"


if __name__ == "__main__":
    sys.exit(main())
