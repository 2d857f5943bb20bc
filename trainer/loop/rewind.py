"""Find what of TensorBoard's event files is beyond a checkpoint. A training sets it aside with `set_aside_beyond`.

`python -m trainer.loop.rewind` changes no file. It prints a line of JSON for each: {"name", "before", "beyond"}, points
up to the checkpoint and after it. With --output the part before is written there, in TensorBoard's record format, of
every file that has both.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.core.files import create_file, make_folder
from trainer.engine.build import StepResult
from trainer.formats.json_text import json_line
from trainer.formats.logs.guard_lines import Reason, leave_line

_EVENTS = "tfevents"


@dataclass(frozen=True)
class Point:
    """The progress of a training, in the units of the curves."""

    iteration: int
    samples: int
    tokens: int

    def is_before(self, tag: str, step: int) -> bool:
        """Return whether that point of a curve comes after this one. Curves in other units do not decide this."""
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
    """Return the file's records up to the first point beyond, as TensorBoard reads them: half a record at the end is
    none.

    Raises OSError for a file that cannot be read or has other records.
    """
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    records: list[bytes] = []
    before = beyond = 0
    for record in RawEventFileLoader(str(path)).Load():
        try:
            event = Event.FromString(record)
        except DecodeError:
            raise OSError(errno.EINVAL, "has a record that is no event", str(path)) from None
        values: Sequence[Any] = event.summary.value
        if beyond or any(point.is_before(one.tag, event.step) for one in values):
            beyond += len(values)
            continue
        records.append(record)
        before += len(values)
    return Split(records, before, beyond)


def write(path: Path, records: Sequence[bytes]) -> None:
    """Write a new event file of these records, durably. Raises OSError."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    make_folder(path.parent)
    with os.fdopen(create_file(path), "wb") as file:
        writer = RecordWriter(file)
        for record in records:
            writer.write(record)
        file.flush()
        os.fsync(file.fileno())


def set_aside_beyond(folder: Path, point: Point) -> int:
    """Take the points after `point` out of the event files in `folder`, and return the number of files changed.

    SummaryWriter's purge_step cannot do it: it purges all tags by one number, and these count in iterations, samples
    and tokens. A file that is changed stays whole under a name without "tfevents", which TensorBoard does not read.
    Reads the newest files only, back to one without such points. Raises OSError.
    """
    changed = 0
    for path in sorted((one for one in event_files(folder) if one.parent == folder), reverse=True):
        found = split(path, point)
        if found.beyond:
            _set_aside(path, found)
            changed += 1
        elif found.before:
            break
    return changed


def _set_aside(path: Path, found: Split) -> None:
    """Keep `path` under another name, and in its place the records before the point, if they have points."""
    numbers = itertools.count(1)
    whole = next(
        one for n in numbers if not (one := path.with_name(path.name.replace(_EVENTS, f"superseded-{n}"))).exists()
    )
    if not found.before:
        path.rename(whole)
        return
    shorter = path.with_name(f".tmp-{whole.name}")
    shorter.unlink(missing_ok=True)  # of a process that was killed here
    try:
        write(shorter, found.records)
        os.link(path, whole)
        shorter.replace(path)
    except BaseException:
        shorter.unlink(missing_ok=True)
        raise


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


class InVain:
    """Counts iterations in a row that changed nothing or measured nothing.

    All ranks count the same results, so all of them come to the same end without asking each other. most: as many end
    the training; 0: none do.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._row = 0

    def count(self, result: StepResult | None) -> None:
        """Take one more iteration's result; None: skipped on request, which says nothing about the training."""
        if result is None:
            return
        self._row = self._row + 1 if result.skipped or not math.isfinite(result.loss) else 0

    def begin_anew(self) -> None:
        """Restart the counts: the training went back to before them."""
        self._row = 0

    def reason(self) -> tuple[Reason, str] | None:
        """Why to leave now, and the line that says so; None to go on."""
        if not self._most or self._row < self._most:
            return None
        return Reason.SKIPPED_ITERATIONS, leave_line(Reason.SKIPPED_ITERATIONS, self._row)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
