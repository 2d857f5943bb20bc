"""Proving copies at their destination: `backup verify` reads what is there, prune proves a copy before it relies on it.

What is lost or damaged no longer counts and is sent again by the next backup. A listing has every file's size and what
the store itself reports of its content (an ETag, the times of a file). While that is what it was at the last proof,
the proof holds; otherwise the copy is read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date

from msgspec.structs import replace

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import remove
from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, What, read_backups, record
from opsctl.transfer.backups.data_copies import FOLDER as DATA
from opsctl.transfer.backups.data_copies import read_data_of
from opsctl.transfer.backups.destination import Destination, read_run, refuse_another_runs
from opsctl.transfer.backups.json_output import PrintedBackup, VerifiedBackups, printed
from opsctl.transfer.backups.remote_layout import NOTE, Found, expected, find, find_all, folder_of
from opsctl.transfer.backups.run_files import FOLDER, newest_snapshot, numbers_there
from opsctl.transfer.object_store.types import Expected, StoreError
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import tag_of


@dataclass(frozen=True)
class _Part:
    """One thing that is there: its files, and the line that the ledger is to have of it."""

    prefix: str
    files: Mapping[str, Expected]
    line: BackedUp  # not proven
    state: str = ""  # of a checkpoint's listing


def verify(place: Destination, sample: Sample | None, report: Callable[[str], None]) -> VerifiedBackups:
    """Compare what is there with its manifests: today's `sample` of the files, or all. report: a line for each.

    A line of the ledger of which nothing whole is there counts no more, and what the ledger does not know is recorded,
    each as soon as it is known. Raises OpsctlError where another backup is running, or the copies are another run's;
    StoreError.
    """
    with place.turn():
        found, faults = find_all(place.store)
        lines = {line.key: line for line in place.ledger()}
        on_record = {(line.iteration, line.what) for line in lines.values()}
        problems = [
            f"{folder_of(what, iteration)}: {fault}"
            for (iteration, what), fault in faults.items()
            if (iteration, what) not in on_record
        ]
        owner = read_run(place.store)
        refuse_another_runs(owner, place.name, place.run_id, place.where)
        if owner is None and any(line.what is not What.DATA for line in lines.values()):
            problems.append(f"has no {NOTE}: is it mounted, or was it emptied?")
        parts, lost, read = _parts(place, found), list[PrintedBackup](), list[Expected]()
        there = {part.line.key for part in parts}
        for line in (line for key, line in lines.items() if key not in there):
            fault = faults.get((line.iteration, line.what))
            why = f"no whole backup of {_thing(line)} is there" + (f": {fault}" if fault else "")
            lost.append(_judge(place, line, replace(line, lost=line.lost or why), problems, report))
        for part in parts:
            files = sample.of(part.prefix, part.files) if sample else part.files
            outcome = place.store.check(files, part.prefix, place.flow)
            read += files.values()
            before, line = lines.get(part.line.key), part.line
            if before is not None and before.of == line.of:
                line = before
            if outcome.faults:
                line = replace(line, lost=next(iter(outcome.faults.values())))
            elif sample is None:
                line = replace(line, lost="", verified_at=now().replace(microsecond=0), proof=part.state)
            printed_line = _judge(place, before, line, problems, report)
            lost += [printed_line] if line.lost else []
    size = sum(file.bytes or 0 for file in read)
    return VerifiedBackups(to=place.to, backups=len(found), files=len(read), bytes=size, lost=lost, problems=problems)


def _parts(place: Destination, found: Sequence[Found]) -> list[_Part]:
    parts = []
    for one in found:
        of = digest_of(one.manifest_bytes) if one.note.what is What.FULL else one.note.of
        line = replace(one.note, of=of).line(place.to)
        parts.append(_Part(one.prefix, expected(one.manifest.files), line, one.state))
    if (snapshot := newest_snapshot(place.store, numbers_there(place.store))) is not None:
        files = {file.at: Expected(file.bytes, file.xxh64) for file in snapshot.files.values()}
        parts.append(_Part(FOLDER, files, snapshot.line(place.to)))
    if (data := read_data_of(place.store, place.name, place.run_id)) is not None:
        files = {name: part.expected for name, part in data.files.items()}
        parts.append(_Part(DATA, files, data.line(place.to)))
    return parts


def _judge(
    place: Destination, before: BackedUp | None, line: BackedUp, problems: list[str], report: Callable[[str], None]
) -> PrintedBackup:
    """Report a line, and record it if it differs from the one before."""
    state = f"LOST: {line.lost}" if line.lost else "as it was sent" if line.verified_at else "its sizes are right"
    report(f"{_thing(line)}{f' {line.what.words}' if line.what.is_checkpoint else ''}: {state}")
    try:
        if line != before:
            record(place.paths, [line])
    except OSError as error:
        problems.append(f"{file_problem(error, place.paths.backups)}: the result was not recorded")
        if line.lost and before is not None and before.counts:
            # Without a ledger prune removes nothing that waits for a backup, and the next backup proves what is there.
            remove(place.paths.output, place.paths.backups)
    return printed(line)


def _thing(line: BackedUp) -> str:
    return tag_of(line.iteration) if line.what.is_checkpoint else line.what.words


@dataclass(frozen=True)
class Sample:
    """The files that one day reads of all: every file once in so many days."""

    days: int
    day: int  # counted from any date on

    def of(self, prefix: str, files: Mapping[str, Expected]) -> dict[str, Expected]:
        """Return the day's files. New files change no other file's day."""
        return {name: one for name, one in files.items() if self._day_of(f"{prefix}/{name}") == self.day % self.days}

    def _day_of(self, name: str) -> int:
        return int(digest_of(os.fsencode(name)), 16) % self.days


def sample_of(percent: str, today: date) -> Sample:
    """Return the day's sample for `5%`. Raises ValueError, one line."""
    with contextlib.suppress(ValueError):
        if percent.endswith("%") and 0 < float(percent[:-1]) <= 100:
            return Sample(round(100 / float(percent[:-1])), today.toordinal())
    raise ValueError(f"{percent!a}: give a share, such as 5%")


def prove(
    lines: Sequence[BackedUp], opened: Callable[[str], AbstractContextManager[Destination]]
) -> dict[BackedUp, str]:
    """Return for each of `lines` why it cannot be relied on; empty where its content is proven at its destination.

    opened: returns a destination by its name in the ledger; each is opened once. A checkpoint with several copies is
    read at one destination at most. A line that is replaced by one with a new proof is there twice, as both.
    """
    answers: dict[BackedUp, str] = {}
    proven: set[str] = set()  # checksums of manifests
    for to in dict.fromkeys(line.to for line in lines):
        of_it = [line for line in lines if line.to == to]
        try:
            with opened(to) as place:
                owner = read_run(place.store)
                if owner is None:
                    raise OpsctlError(f"{place.store.where} has no {NOTE}: is it mounted, or was it emptied?")
                refuse_another_runs(owner, place.name, place.run_id, place.store.where)
                for line in of_it:
                    known = _proven(place, line, line.of in proven)
                    answers[line] = known.lost
                    if not known.lost:
                        answers[known] = ""
                        proven.add(line.of)
        except OpsctlError as error:
            answers |= {line: f"does not answer now: {error}" for line in of_it if line not in answers}
    return answers


def _proven(place: Destination, line: BackedUp, is_proven_elsewhere: bool) -> BackedUp:
    """Return the line of the ledger as it is now known: lost, or proven."""
    try:
        found = find(place.store, line.iteration, line.what)
        if digest_of(found.manifest_bytes) != line.of:
            raise OpsctlError("another save of it is there")
        if is_proven_elsewhere or (found.state and found.state == line.proof):
            return line
        files = expected(found.manifest.files)
        place.store.check(files, found.prefix, place.flow).raise_faults()
        known = replace(line, verified_at=now().replace(microsecond=0), proof=found.state)
    except StoreError:
        raise
    except OpsctlError as error:
        known = replace(line, lost=str(error))
    # unless another backup to that place is running, or has changed the line meanwhile
    with contextlib.suppress(OpsctlError, OSError), place.turn():
        if line in read_backups(place.paths):
            record(place.paths, [known])
    return known
