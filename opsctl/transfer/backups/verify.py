"""Proving copies at their destination: `backup verify` reads what is there, prune proves a copy before it relies on it.

What is lost or damaged no longer counts and is sent again by the next backup. A listing has every file's size and what
the store itself reports of its content (an ETag, the times of a file). While that is what it was at the last proof,
the proof holds; otherwise the copy is proven by the store's own checksums against the files here, or by reading it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import append_state, read_last_lines, remove
from opsctl.core.files.trusted import opened_folder
from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, What, read_backups, record
from opsctl.transfer.backups.data_copies import FOLDER as DATA
from opsctl.transfer.backups.data_copies import read_data_of
from opsctl.transfer.backups.destination import NOTE, Destination, read_run, refuse_another_runs
from opsctl.transfer.backups.remote_layout import (
    Form,
    check_files_there,
    expected,
    find,
    find_all,
    folder_of,
    why_lost,
)
from opsctl.transfer.backups.run_files import FOLDER, newest_look, numbers_there
from opsctl.transfer.object_store.types import Expected, StoreError
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import tag_of

_ROUNDS_READ_BYTES = 1 << 20


class Round(msgspec.Struct, frozen=True):
    """The progress of reading a destination's files: a line of `.opsctl/backups-read.jsonl`."""

    to: str
    number: int = 0  # of the round
    reached: str = ""  # the last place of the round that was read


@dataclass
class Verified:
    """The result of a verification."""

    backups: int = 0
    files: int = 0  # read
    bytes: int = 0
    lost: list[BackedUp] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Part:
    """One thing that is there: its folder, its files, and the line that the ledger is to have of it."""

    prefix: str
    files: Mapping[str, Expected]
    line: BackedUp  # not proven
    form: Form = Form.FILES
    state: str = ""  # of a checkpoint, before it was read


def verify(place: Destination, sample: tuple[float, int] | None, report: Callable[[str], None]) -> Verified:
    """Compare what is there with its manifests: `sample` of the files (share, least), or all. report: a line for each.

    A line of the ledger of which nothing whole is there counts no more, and what the ledger does not know is recorded,
    each as soon as it is known. Raises OpsctlError where another backup is running, or the copies are another run's;
    StoreError.
    """
    with place.turn():
        found, faults = find_all(place.store)
        done = Verified(len(found))
        try:
            lines = {line.key: line for line in read_backups(place.paths) if line.to == place.to}
        except OSError as error:
            raise OpsctlError(f"nothing is verified: {file_problem(error, place.paths.backups)}") from None
        on_record = {(line.iteration, line.what) for line in lines.values()}
        done.problems += [
            f"{folder_of(what, iteration)}: {fault}"
            for (iteration, what), fault in faults.items()
            if (iteration, what) not in on_record
        ]
        owner = read_run(place.store)
        refuse_another_runs(owner, place.name, place.run_id, place.store.where)
        if owner is None and any(line.what is not What.DATA for line in lines.values()):
            done.problems.append(f"has no {NOTE}: is it mounted, or was it emptied?")
        parts = []
        for one in found:
            of = digest_of(one.manifest_bytes) if one.note.what is What.FULL else one.note.of
            line = replace(one.note, of=of).line(place.to)
            parts.append(_Part(one.prefix, expected(one.manifest.files), line, one.note.form, one.state))
        if (look := newest_look(place.store, numbers_there(place.store))) is not None:
            files = {file.at: Expected(file.bytes, file.xxh64) for file in look.files.values()}
            parts.append(_Part(FOLDER, files, look.line(place.to)))
        if (data := read_data_of(place.store, place.name, place.run_id)) is not None:
            files = {name: part.expected for name, part in data.files.items()}
            parts.append(_Part(DATA, files, data.line(place.to)))
        there = {part.line.key for part in parts}
        for line in (line for key, line in lines.items() if key not in there):
            fault = faults.get((line.iteration, line.what))
            why = f"no whole backup of {_thing(line)} is there" + (f": {why_lost(fault, line)}" if fault else "")
            _judge(place, lines, replace(line, lost=line.lost or why), done, report)
        drawn, after = (None, None) if sample is None else _drawn(place, parts, sample)
        for part in parts:
            fault_there = _read(place, part, drawn, done)
            _judge(place, lines, _line_now(part, lines, fault_there, sample is None), done, report)
        if after is not None:
            append_state(place.paths.output, place.paths.backups_read, after)
    return done


def _read(place: Destination, part: _Part, drawn: set[tuple[str, str]] | None, done: Verified) -> str:
    """Return what is wrong with the first file that is not as it was; empty where there is none."""
    files = {name: one for name, one in part.files.items() if drawn is None or (part.prefix, name) in drawn}
    outcome = check_files_there(place.store, part.prefix, part.form, files, place.flow)
    done.files += len(files)
    done.bytes += sum(file.bytes or 0 for file in files.values())
    return next(iter(outcome.faults.values()), "")


def _line_now(part: _Part, lines: Mapping[tuple[str, int, What], BackedUp], fault: str, is_all: bool) -> BackedUp:
    before = lines.get(part.line.key)
    line = replace(before, form=part.line.form) if before is not None and before.of == part.line.of else part.line
    if fault:
        return replace(line, lost=fault)
    if is_all:
        return replace(line, lost="", verified_at=now().replace(microsecond=0), proof=part.state)
    return line


def _judge(
    place: Destination,
    lines: Mapping[tuple[str, int, What], BackedUp],
    line: BackedUp,
    done: Verified,
    report: Callable[[str], None],
) -> None:
    """Report a line, and record it where it has changed."""
    state = f"LOST: {line.lost}" if line.lost else "as it was sent" if line.verified_at else "its sizes are right"
    report(f"{_thing(line)}{f' {line.what.words}' if line.what.is_checkpoint else ''}: {state}")
    done.lost += [line] if line.lost else []
    before = lines.get(line.key)
    if before == line:
        return
    try:
        record(place.paths, [line])
    except OSError as error:
        done.problems.append(f"{file_problem(error, place.paths.backups)}: what was found is not on record")
        if line.lost and before is not None and before.counts:
            # Without a ledger prune removes nothing that waits for a backup, and the next backup proves what is there.
            remove(place.paths.output, place.paths.backups)


def _thing(line: BackedUp) -> str:
    return tag_of(line.iteration) if line.what.is_checkpoint else line.what.words


def _drawn(place: Destination, parts: Sequence[_Part], sample: tuple[float, int]) -> tuple[set[tuple[str, str]], Round]:
    try:
        rounds = read_last_lines(place.paths.output, place.paths.backups_read, Round, _ROUNDS_READ_BYTES)
    except OSError as error:
        raise OpsctlError(f"nothing is verified: {file_problem(error, place.paths.backups_read)}") from None
    before = next((line for line in reversed(rounds) if line.to == place.to), Round(place.to))
    files, after = draw([(part.prefix, name) for part in parts for name in part.files], *sample, before)
    return set(files), after


def draw(
    files: Sequence[tuple[str, str]], share: float, least: int, before: Round
) -> tuple[list[tuple[str, str]], Round]:
    """Return the next files of the round, and how far it is then: `share` of all files, at least `least` of them.

    A round reads every (backup, file) once; past its end those of the next round follow. New files have their place in
    the round like any other.
    """
    count = min(len(files), max(least, math.ceil(share * len(files))))
    placed = sorted((_place(file, before.number), file) for file in files)
    rest = [one for one in placed if one[0] > before.reached]
    if len(rest) > count:
        return [file for _, file in rest[:count]], Round(before.to, before.number, rest[count - 1][0])
    taken = [file for _, file in rest]
    number, missing = before.number + 1, count - len(taken)
    again = sorted((_place(file, number), file) for file in files if file not in set(taken))[:missing]
    reached = again[-1][0] if again else ""
    return [*taken, *(file for _, file in again)], Round(before.to, number, reached)


def share_of(text: str) -> tuple[float, int]:
    """Return (0.05, 1) for `5%` and (0, 20) for `20`. Raises ValueError, one line."""
    try:
        if text.endswith("%"):
            percent = float(text[:-1])
            if 0 < percent <= 100:
                return percent / 100, 1
        elif int(text) > 0:
            return 0.0, int(text)
    except ValueError:
        pass
    raise ValueError(f"{text!a}: give a number of files, such as 20, or a share, such as 5%")


def _place(file: tuple[str, str], number: int) -> str:
    import xxhash

    return str(xxhash.xxh64(f"{number}\0{file[0]}\0{file[1]}".encode(errors="surrogateescape")).hexdigest())


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
            answers |= {line: f"cannot be asked now: {error}" for line in of_it if line not in answers}
    return answers


def _proven(place: Destination, line: BackedUp, is_proven_elsewhere: bool) -> BackedUp:
    """Return the line of the ledger as it is now known: lost, or proven."""
    try:
        found = find(place.store, line.iteration, line.what)
        if digest_of(found.manifest_bytes) != line.of:
            raise OpsctlError("another save of it is there")
        if is_proven_elsewhere or (found.state and found.state == line.proof):
            return line
        files, form = expected(found.manifest.files), found.note.form
        if form is Form.FILES:
            with (
                contextlib.suppress(OSError),
                opened_folder(place.paths.output, place.paths.checkpoints / tag_of(line.iteration)) as (folder, _),
            ):
                proven = place.store.proven(folder, files, found.prefix, place.flow)
                files = {name: one for name, one in files.items() if name not in proven}
        for fault in check_files_there(place.store, found.prefix, form, files, place.flow).faults.values():
            raise OpsctlError(fault)
        known = replace(line, verified_at=now().replace(microsecond=0), proof=found.state)
    except StoreError:
        raise
    except OpsctlError as error:
        known = replace(line, lost=why_lost(error, line))
    # unless another backup to that place is running, or has changed the line meanwhile
    with contextlib.suppress(OpsctlError, OSError), place.turn():
        if line in read_backups(place.paths):
            record(place.paths, [known])
    return known
