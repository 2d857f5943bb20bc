"""Asking destinations whether copies are still there, right before those here go: by listings, without reading them.

A listing has every file's size, and the manifest there has to be the one that was sent. Bits that turned are for
`verifying`. A place that does not answer, or is not what it was, proves nothing; what it has lost goes on record, so
that the next backup sends it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from msgspec.structs import replace

from opsctl.backups.far import NOTE, find, read_run, refuse_another_runs
from opsctl.backups.sending import Destination, turn
from opsctl.checkpoints.backups import BackedUp, read_backups, record
from opsctl.errors import OpsctlError
from opsctl.records.identity import read_run_id
from opsctl.stores.types import StoreError
from trainer.formats.verification import digest_of


def ask(lines: Sequence[BackedUp], opened: Callable[[str], AbstractContextManager[Destination]]) -> dict[BackedUp, str]:
    """What the destination of each of `lines` says of it: empty where it is there, else why it cannot be relied on.

    opened: gives a destination by its name in the ledger; each is opened once.
    """
    answers: dict[BackedUp, str] = {}
    for to in dict.fromkeys(line.to for line in lines):
        of_it = [line for line in lines if line.to == to]
        try:
            with opened(to) as place:
                _refuse_where_nothing_is(place)
                for line in of_it:
                    answers[line] = _answer(place, line)
        except OpsctlError as error:
            answers |= {line: f"cannot be asked now: {error}" for line in of_it if line not in answers}
    return answers


def _refuse_where_nothing_is(place: Destination) -> None:
    whose = read_run(place.store)
    if whose is None:
        raise OpsctlError(f"{place.store.where} has no {NOTE}: is it mounted, or was it emptied?")
    refuse_another_runs(whose, place.name, read_run_id(place.paths) or "", place.store.where)


def _answer(place: Destination, line: BackedUp) -> str:
    try:
        found = find(place.store, line.iteration, line.what)
        lost = "" if digest_of(found.manifest_bytes) == line.of else "another save of it is there"
    except StoreError:
        raise
    except OpsctlError as error:
        lost = str(error)
    if lost:
        _put_on_record(place, line, lost)
    return lost


def _put_on_record(place: Destination, line: BackedUp, lost: str) -> None:
    """Unless somebody backs up there now, or has since the question: he knows better. It stays here either way."""
    with contextlib.suppress(OpsctlError, OSError), turn(place.paths, place.name, place.to):
        if line in read_backups(place.paths):
            record(place.paths, [replace(line, lost=lost)])
