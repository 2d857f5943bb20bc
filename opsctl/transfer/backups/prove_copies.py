"""Prove copies at their destinations, right before the last local ones are removed.

A listing has every file's size and what the store itself says of its content (an ETag, the times of a file), and the
manifest there has to be the one that was sent. Where the listing differs from the one at the last proof, or the ledger
has no proof, the copy is proven once: by the store's own checksums against the files here, where it has any, otherwise
by reading it. The proof goes on record with its date. A place that does not answer, or is not what it was, proves
nothing; what it has lost goes on record, so that the next backup sends it again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from msgspec.structs import replace

from opsctl.core.errors import OpsctlError
from opsctl.core.files.trusted import opened_folder
from opsctl.core.timestamps import now
from opsctl.run.checkpoints.backups import BackedUp, read_backups, record
from opsctl.run.state.identity import read_run_id
from opsctl.transfer.backups import checkpoint_forms
from opsctl.transfer.backups.remote_layout import NOTE, Found, find, read_run, refuse_another_runs, why_lost
from opsctl.transfer.backups.send_checkpoint import Destination, turn
from opsctl.transfer.object_store.types import Expected, StoreError
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import tag_of


def ask(lines: Sequence[BackedUp], opened: Callable[[str], AbstractContextManager[Destination]]) -> dict[BackedUp, str]:
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
                _refuse_where_nothing_is(place)
                for line in of_it:
                    known = _proven(place, line, line.of in proven)
                    answers[line] = known.lost
                    if not known.lost:
                        answers[known] = ""
                        proven.add(line.of)
        except OpsctlError as error:
            answers |= {line: f"cannot be asked now: {error}" for line in of_it if line not in answers}
    return answers


def _refuse_where_nothing_is(place: Destination) -> None:
    whose = read_run(place.store)
    if whose is None:
        raise OpsctlError(f"{place.store.where} has no {NOTE}: is it mounted, or was it emptied?")
    refuse_another_runs(whose, place.name, read_run_id(place.paths) or "", place.store.where)


def _proven(place: Destination, line: BackedUp, is_proven_elsewhere: bool) -> BackedUp:
    """Return the line of the ledger as it is now known: lost, or proven."""
    try:
        found = find(place.store, line.iteration, line.what)
        if digest_of(found.manifest_bytes) != line.of:
            raise OpsctlError("another save of it is there")
        if is_proven_elsewhere or (found.state and found.state == line.proof):
            return line
        files = checkpoint_forms.expected(found.manifest.files)
        vouched = _vouched(place, found, files)
        files = {name: expected for name, expected in files.items() if name not in vouched}
        for fault in checkpoint_forms.check(place.store, found.prefix, found.form, files, place.flow).faults.values():
            raise OpsctlError(fault)
        known = replace(line, verified_at=now().replace(microsecond=0), proof=found.state)
    except StoreError:
        raise
    except OpsctlError as error:
        known = replace(line, lost=why_lost(error, line))
    _put_on_record(place, line, known)
    return known


def _vouched(place: Destination, found: Found, files: Mapping[str, Expected]) -> Collection[str]:
    """Return the files that a checksum of the store's own proves to be those here. A tar is not here."""
    if found.form is checkpoint_forms.Form.TAR:
        return ()
    try:
        here = place.paths.checkpoints / tag_of(found.note.iteration)
        with opened_folder(place.paths.output, here) as (folder, _):
            return place.store.proven(folder, files, found.prefix, place.flow)
    except OSError:
        return ()


def _put_on_record(place: Destination, line: BackedUp, known: BackedUp) -> None:
    """Replace the line, unless another backup to that place is running or has changed the line meanwhile."""
    with contextlib.suppress(OpsctlError, OSError), turn(place.paths, place.name, place.to):
        if line in read_backups(place.paths):
            record(place.paths, [known])
