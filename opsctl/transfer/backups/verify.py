"""Reading again what is at a destination: what is lost or wrong there no longer counts, and is sent again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import append_state, read_last_lines, remove
from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, What, read_backups, record
from opsctl.run.state.identity import read_run_id
from opsctl.transfer.backups import checkpoint_forms
from opsctl.transfer.backups.checkpoints import line_of
from opsctl.transfer.backups.data_remote import FOLDER as DATA
from opsctl.transfer.backups.data_remote import FarRunData, read_data_of
from opsctl.transfer.backups.remote_layout import (
    NOTE,
    Found,
    find_all,
    folder_of,
    read_run,
    refuse_another_runs,
    why_lost,
)
from opsctl.transfer.backups.run_files import FOLDER, Look, newest_look, numbers_there
from opsctl.transfer.backups.sampling import Drawn, Round, draw
from opsctl.transfer.backups.send_checkpoint import Destination, turn
from opsctl.transfer.object_store.types import Expected
from trainer.formats.checkpoint.manifest import tag_of
from trainer.formats.checkpoint.verification import digest_of

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
    put on record, each as soon as it is known. Raises OpsctlError where another backup is at it, or the copies are
    another run's; StoreError.
    """
    with turn(place.paths, place.name, place.to):
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
        whose = read_run(place.store)
        refuse_another_runs(whose, place.name, read_run_id(place.paths) or "", place.store.where)
        if whose is None and any(line.what is not What.DATA for line in lines.values()):
            done.problems.append(f"has no {NOTE}: is it mounted, or was it emptied?")
        look = newest_look(place.store, numbers_there(place.store))
        data = read_data_of(place.store, place.name, read_run_id(place.paths) or "")
        for line in _missing(found, faults, look, data, list(lines.values())):
            _tell(place, lines, line, done, say)
        parts = [*map(_checkpoint, found), *([_look(look)] if look else []), *([_data(data)] if data else [])]
        drawn = None if sample is None else _drawn(place, parts, sample)
        for part in parts:
            fault = _read(place, part, drawn, done)
            _tell(place, lines, _judged(place, part, lines, fault, sample is None), done, say)
        if drawn is not None:
            append_state(place.paths.output, place.paths.backups_read, drawn.after)
    return done


@dataclass(frozen=True)
class _Part:
    """What is there as one thing: where, its files, and the line that the ledger is to have of it."""

    prefix: str
    files: Mapping[str, Expected]
    line: BackedUp  # never proven
    form: checkpoint_forms.Form = checkpoint_forms.Form.FILES
    state: str = ""  # of a checkpoint: `state_of` it before it was read


def _checkpoint(one: Found) -> _Part:
    of = digest_of(one.manifest_bytes) if one.note.what is What.FULL else one.note.of
    line = replace(line_of(replace(one.note, of=of), ""), form=one.form.value)
    return _Part(one.prefix, checkpoint_forms.expected(one.manifest.files), line, one.form, one.state)


def _look(look: Look) -> _Part:
    line = BackedUp(
        to="",
        what=What.REST,
        of=str(look.number),
        files=len(look.files),
        bytes=sum(file.bytes for file in look.files.values()),
        sent_at=look.at,
        by=look.by,
    )
    return _Part(FOLDER, {file.at: Expected(file.bytes, file.xxh64) for file in look.files.values()}, line)


def _data(data: FarRunData) -> _Part:
    line = BackedUp(
        to="",
        what=What.DATA,
        of=data.of,
        files=len(data.files),
        bytes=sum(part.bytes for part in data.files.values()),
        sent_at=data.at,
        by=data.by,
    )
    return _Part(DATA, {name: Expected(part.bytes, part.xxh64) for name, part in data.files.items()}, line)


def _missing(
    found: list[Found],
    faults: Mapping[tuple[int, What], OpsctlError],
    look: Look | None,
    data: FarRunData | None,
    lines: list[BackedUp],
) -> list[BackedUp]:
    """Return the lines of which nothing whole is there, each with the reason."""

    def why(line: BackedUp) -> str:
        fault = faults.get((line.iteration, line.what))
        return f"no whole backup of {_thing(line)} is there" + (f": {why_lost(fault, line)}" if fault else "")

    there = {(one.note.iteration, one.note.what) for one in found}
    if look is not None:
        there.add((0, What.REST))
    if data is not None:
        there.add((0, What.DATA))
    return [replace(line, lost=line.lost or why(line)) for line in lines if (line.iteration, line.what) not in there]


def _drawn(place: Destination, parts: list[_Part], sample: tuple[float, int]) -> Drawn:
    return draw([(part.prefix, name) for part in parts for name in part.files], *sample, _round_of(place))


def _read(place: Destination, part: _Part, drawn: Drawn | None, done: Verified) -> str:
    """What is wrong with the first file that is not as it was; empty where there is none."""
    names = None if drawn is None else {name for prefix, name in drawn.files if prefix == part.prefix}
    files = {name: expected for name, expected in part.files.items() if names is None or name in names}
    outcome = checkpoint_forms.check(place.store, part.prefix, part.form, files, place.flow)
    done.files += len(files)
    done.bytes += sum(file.bytes or 0 for file in files.values())
    return next(iter(outcome.faults.values()), "")


def _judged(
    place: Destination, part: _Part, lines: dict[tuple[str, int, What], BackedUp], fault: str, is_all: bool
) -> BackedUp:
    """The ledger's line as it is to be."""
    fresh = replace(part.line, to=place.to)
    before = lines.get(fresh.key)
    line = replace(before, form=fresh.form) if before is not None and before.of == fresh.of else fresh
    if fault:
        return replace(line, lost=fault)
    if is_all:
        return replace(line, lost="", verified_at=now().replace(microsecond=0), proof=part.state)
    return line


def _tell(
    place: Destination,
    lines: dict[tuple[str, int, What], BackedUp],
    line: BackedUp,
    done: Verified,
    say: Callable[[str], None],
) -> None:
    """Say what is known of it, and put it on record where that is news."""
    say(_told(line))
    done.lost += [line] if line.lost else []
    before = lines.get(line.key)
    if before == line:
        return
    try:
        record(place.paths, [line])
    except OSError as error:
        done.problems.append(f"{file_problem(error, place.paths.backups)}: what was found is not on record")
        if line.lost and before is not None and before.counts:
            # Without a ledger prune takes nothing that waits for a backup, and the next one proves what is there.
            remove(place.paths.output, place.paths.backups)


def _round_of(place: Destination) -> Round:
    try:
        lines = read_last_lines(place.paths.output, place.paths.backups_read, Round, _ROUNDS_READ_BYTES)
    except OSError as error:
        raise OpsctlError(f"nothing is verified: {file_problem(error, place.paths.backups_read)}") from None
    return next((line for line in reversed(lines) if line.to == place.to), Round(place.to))


def _told(line: BackedUp) -> str:
    state = f"LOST: {line.lost}" if line.lost else "as it was sent" if line.verified_at else "its sizes are right"
    return f"{_thing(line)}{f' {line.what.words}' if line.what.is_checkpoint else ''}: {state}"


def _thing(line: BackedUp) -> str:
    return tag_of(line.iteration) if line.what.is_checkpoint else line.what.words
