"""What of TensorBoard's event files lies beyond a checkpoint: `python -m trainer.loop.rewind`. Changes none of them.

Prints a line of JSON for each file: {"name", "before", "beyond"}, points up to the checkpoint and after it. With
--output the part before is written there anew, record by record as TensorBoard itself frames them, of every file that
has both.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.files import create_file, make_folder
from trainer.formats.json_text import json_line

_EVENTS = "tfevents"


@dataclass(frozen=True)
class Point:
    """How far a training was, in the units that curves have."""

    iteration: int
    samples: int
    tokens: int

    def is_before(self, tag: str, step: int) -> bool:
        """Whether that point of a curve comes after this one. What counts in other units is not told by itself."""
        if tag.endswith((" vs samples", ",x=samples")):
            return step > self.samples
        if tag.endswith((" vs tokens", ",x=tokens")):
            return step > self.tokens
        return " vs " not in tag and step > self.iteration


@dataclass(frozen=True)
class Split:
    """An event file's records, divided at a point; every process has a file of its own, in the order of its steps."""

    records: list[bytes]  # before: all of them as they were
    before: int  # points among them
    beyond: int  # points after


def event_files(folder: Path) -> Iterator[Path]:
    """Every event file in `folder` and below; no link is followed."""
    for where, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(where) / name
            if _EVENTS in name and path.is_file() and not path.is_symlink():
                yield path


def split(path: Path, point: Point) -> Split:
    """The file's records up to the first point beyond, as TensorBoard reads them: half a record at the end is none."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    records: list[bytes] = []
    before = beyond = 0
    for record in RawEventFileLoader(str(path)).Load():
        event = Event.FromString(record)
        values: Sequence[Any] = event.summary.value
        if beyond or any(point.is_before(one.tag, event.step) for one in values):
            beyond += len(values)
            continue
        records.append(record)
        before += len(values)
    return Split(records, before, beyond)


def write(path: Path, records: Sequence[bytes]) -> None:
    """A new event file of these records, on the disk when this returns. Raises OSError."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    make_folder(path.parent)
    with os.fdopen(create_file(path), "wb") as file:
        writer = RecordWriter(file)
        for record in records:
            writer.write(record)
        file.flush()
        os.fsync(file.fileno())


def main(arguments: Sequence[str]) -> int:
    """Look at every file; 1 with a line where one cannot be read or written."""
    parser = argparse.ArgumentParser(prog="trainer.loop.rewind")
    parser.add_argument("--folder", type=Path, required=True)
    for unit in ("iteration", "samples", "tokens"):
        parser.add_argument(f"--{unit}", type=int, required=True)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args(arguments)
    point = Point(given.iteration, given.samples, given.tokens)
    try:
        for path in event_files(given.folder):
            name, found = str(path.relative_to(given.folder)), split(path, point)
            if given.output and found.before and found.beyond:
                write(given.output / name, found.records)
            print(json_line({"name": name, "before": found.before, "beyond": found.beyond}), flush=True)
    except OSError as error:
        print(f"{error.filename or given.folder}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
