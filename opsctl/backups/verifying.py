"""Reading again what is at a destination: what is lost or wrong there no longer counts, and is sent again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from opsctl.backups.checkpoints import line_of
from opsctl.backups.far import Found, find_all
from opsctl.backups.sampling import Round, draw
from opsctl.backups.sending import Destination, turn
from opsctl.checkpoints.backups import BackedUp, What, digest_of, read_backups, record
from opsctl.errors import OpsctlError, file_problem
from opsctl.moments import now
from opsctl.records.state_files import append_state, read_last_lines
from opsctl.stores.types import Expected
from trainer.formats.manifest import tag_of

_ROUNDS_READ_BYTES = 1 << 20


@dataclass
class Verified:
    """What a verification found."""

    backups: int = 0
    files: int = 0  # read
    bytes: int = 0
    lost: list[BackedUp] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def verify(place: Destination, sample: tuple[float, int] | None, say: Callable[[str], None]) -> Verified:
    """Compare what is there with its manifests: `sample` of the files (share, least), or all. say: told of each.

    Every line of the ledger of which nothing whole is left there counts no more, and what the ledger does not know is
    put on record. Raises OpsctlError where another backup is at it, StoreError.
    """
    done = Verified()
    with turn(place.paths, place.name, place.to):
        found, done.problems = find_all(place.store)
        try:
            lines = {line.key: line for line in read_backups(place.paths) if line.to == place.to}
        except OSError as error:
            raise OpsctlError(f"nothing is verified: {file_problem(error, place.paths.backups)}") from None
        missing = _missing(found, list(lines.values()))
        faults = _read(place, found, sample, done)
        whole = [_judged(place, one, lines, faults.get(one.prefix, ""), sample is None) for one in found]
        done.backups = len(found)
        done.lost = [*missing, *(line for line in whole if line.lost)]
        changed = [line for line in (*missing, *whole) if lines.get(line.key) != line]
        for line in (*missing, *whole):
            say(_told(line))
        try:
            record(place.paths, changed)
        except OSError as error:
            done.problems.append(f"{file_problem(error, place.paths.backups)}: what was found is not on record")
    return done


def _missing(found: list[Found], lines: list[BackedUp]) -> list[BackedUp]:
    """Those on record of which nothing whole is there."""
    there = {(one.note.iteration, one.note.what) for one in found}
    return [
        replace(line, lost=line.lost or f"no whole backup of {tag_of(line.iteration)} is there")
        for line in lines
        if line.what is not What.REST and (line.iteration, line.what) not in there
    ]


def _read(place: Destination, found: list[Found], sample: tuple[float, int] | None, done: Verified) -> dict[str, str]:
    """What is wrong, by the backup's folder: the first file of each."""
    all_files = [(one.prefix, name) for one in found for name in one.manifest.files]
    if sample is None:
        chosen = all_files
    else:
        drawn = draw(all_files, *sample, _round_of(place))
        chosen = list(drawn.files)
        append_state(place.paths.output, place.paths.backups_read, drawn.after)
    faults = {}
    for one in found:
        names = {name for prefix, name in chosen if prefix == one.prefix}
        files = {name: Expected(file.bytes, file.xxh64) for name, file in one.manifest.files.items() if name in names}
        outcome = place.store.check(files, one.prefix, flow=place.flow)
        done.files += len(files)
        done.bytes += sum(file.bytes or 0 for file in files.values())
        if outcome.faults:
            faults[one.prefix] = next(iter(outcome.faults.values()))
    return faults


def _judged(
    place: Destination, one: Found, lines: dict[tuple[str, int, What], BackedUp], fault: str, is_all: bool
) -> BackedUp:
    """The ledger's line as it is to be."""
    before = lines.get((place.to, one.note.iteration, one.note.what))
    of = digest_of(one.manifest_bytes) if one.note.what is What.FULL else one.note.of
    line = before if before is not None and before.of == of else line_of(replace(one.note, of=of), place.to)
    if fault:
        return replace(line, lost=fault)
    if is_all:
        return replace(line, lost="", verified_at=now().replace(microsecond=0))
    return line


def _round_of(place: Destination) -> Round:
    try:
        lines = read_last_lines(place.paths.output, place.paths.backups_read, Round, _ROUNDS_READ_BYTES)
    except OSError as error:
        raise OpsctlError(f"nothing is verified: {file_problem(error, place.paths.backups_read)}") from None
    return next((line for line in reversed(lines) if line.to == place.to), Round(place.to))


def _told(line: BackedUp) -> str:
    state = f"LOST: {line.lost}" if line.lost else "whole" if line.verified_at else "its sizes are right"
    return f"{tag_of(line.iteration)} {line.what.words}: {state}"
