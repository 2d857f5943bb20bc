"""Sending checkpoints to a destination, the newest first: files, then the manifest, then a line in the ledger.

Whatever happens to a checkpoint here meanwhile (pruned, moved, saved again), what is there has its manifest only when
all of it is there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from opsctl.core.account import account_and_host
from opsctl.core.errors import OpsctlError, file_problem
from opsctl.core.files.state_files import FULL_DISK, read_text
from opsctl.core.files.trusted import opened_folder
from opsctl.core.timestamps import now
from opsctl.core.units import bytes_words
from opsctl.run.checkpoints.backups import BackedUp, What, record
from opsctl.run.config.paths import RunPaths
from opsctl.run.state.checkpoint_readers import reading
from opsctl.transfer.object_store.types import FarFile, StoreError
from opsctl.transfer.sending.plan import NOT_THERE, Due, size_of
from trainer.formats.checkpoint.exchanged import digest_of
from trainer.formats.checkpoint.manifest import MANIFEST, Manifest, decode_manifest, tag_of
from trainer.formats.checkpoint.starting import manifest_text, without_optimizer
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_line


@dataclass(frozen=True)
class Sending:
    """A checkpoint that is being sent."""

    line: BackedUp  # the ledger's, not proven yet
    folder: int  # descriptor of its folder here
    manifest: Manifest  # as it is to be there
    text: bytes  # of this manifest
    left_out: tuple[str, ...]  # files of the checkpoint here that are not sent

    @property
    def tag(self) -> str:
        """Return its folder's name."""
        return tag_of(self.line.iteration)


class Place(Protocol):
    """A destination of one run. Every method raises StoreError where it takes no more, OpsctlError for a fault."""

    @property
    def where(self) -> str:
        """Return its name for people."""

    @property
    def form(self) -> str:
        """Return the form in which it stores checkpoints."""

    def has(self, sending: Sending) -> bool:
        """Return whether all of it is known to be there already."""

    def send_files(self, sending: Sending) -> None:
        """Have all files there, each proven, and no manifest of another save."""

    def send_manifest(self, sending: Sending) -> None:
        """Put the manifest there, so that the checkpoint is complete."""

    def proof(self, sending: Sending) -> str:
        """Return what the destination reports of it now, as `listing_proof`."""


@dataclass
class Sent:
    """The checkpoints that were sent, and why others were not."""

    lines: list[BackedUp] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def send_all(
    place: Place, paths: RunPaths, to: str, ledger: Path, due: Iterable[Due], report: Callable[[str], None]
) -> Sent:
    """Send the checkpoints that are due. report: gets a line for each. Raises StoreError if `place` takes no more."""
    done = Sent()
    for one in sorted(due, key=lambda one: -one.iteration):
        try:
            line = _send(place, paths, to, one)
        except StoreError:
            raise
        except OpsctlError as error:
            done.problems.append(f"{tag_of(one.iteration)}: {error}")
            continue
        report(
            f"{tag_of(one.iteration)} is there {line.what.words}, {bytes_words(line.bytes)} ({one.reason}, {one.news})"
        )
        done.lines.append(line)
        done.problems += record_sent(paths, [line], ledger)
    return done


def record_sent(paths: RunPaths, lines: Iterable[BackedUp], ledger: Path) -> list[str]:
    """Record copies; return the problem if the ledger cannot be written. The next transfer finds the copies then."""
    try:
        record(paths, lines, ledger)
    except OSError as error:
        why = FULL_DISK.get(error.errno or 0) or file_problem(error, ledger)
        return [f"the copy is there, but {ledger} cannot be written: {why}"]
    return []


def _send(place: Place, paths: RunPaths, to: str, due: Due) -> BackedUp:
    """Send one checkpoint, marked as being read, and return its line.

    Raises OpsctlError, with the reason, if it is not there completely afterwards.
    """
    folder = paths.checkpoints / tag_of(due.iteration)
    try:
        with (
            reading(paths, due.iteration, f"copy to {place.where}"),
            opened_folder(paths.output, folder) as (held, _),
        ):
            text = _manifest_here(paths, due)
            whole = decode_manifest(text, f"{folder.name}/{MANIFEST}")
            manifest = whole if due.what is What.FULL else without_optimizer(whole)
            line = BackedUp(
                to=to,
                what=due.what,
                iteration=due.iteration,
                of=due.of,
                form=place.form,
                files=len(manifest.files),
                bytes=size_of(manifest.files),
                sent_at=now().replace(microsecond=0),
                by=account_and_host(),
            )
            text = text if due.what is What.FULL else manifest_text(manifest)
            left_out = tuple(sorted(whole.files.keys() - manifest.files.keys()))
            sending = Sending(line, held, manifest, text, left_out)
            if due.news != NOT_THERE or not place.has(sending):
                place.send_files(sending)
                _manifest_here(paths, due)
                place.send_manifest(sending)
            return replace(line, verified_at=now().replace(microsecond=0), proof=place.proof(sending))
    except CheckpointError as error:
        raise OpsctlError(f"it is not sent: {error}") from None
    except OSError as error:
        raise OpsctlError(f"it is not sent: {file_problem(error, folder)}") from None


def _manifest_here(paths: RunPaths, due: Due) -> bytes:
    """Return the manifest as it is now. Raises OSError, OpsctlError if it is not that of `due`."""
    path = paths.checkpoints / tag_of(due.iteration) / MANIFEST
    text = read_text(paths.output, path)
    if text is None:
        raise FileNotFoundError(errno.ENOENT, "it was removed meanwhile", str(path))
    if digest_of(text.encode()) != due.of:
        raise OpsctlError("it was saved again meanwhile: the next transfer sends that")
    return text.encode()


def listing_proof(there: Mapping[str, FarFile], names: Iterable[str]) -> str:
    """Return a digest of what the destination reports of `names`; it changes when any of them is written.

    Empty if a name is missing or the destination reports too little: then only reading the files proves them.
    """
    files = [(name, there[name].bytes, there[name].mark) if name in there else ("", 0, "") for name in names]
    return digest_of(json_line(files).encode()) if all(mark for *_, mark in files) else ""
