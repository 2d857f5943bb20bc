"""The state of a training as its repository on the hub shows it: log, last complete checkpoint. Only reads."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from opsctl.core.timestamps import now
from opsctl.run.logs.measurements import TAIL_BYTES, recent_in
from opsctl.run.logs.records import Alert, Measured, Pulse
from opsctl.transfer.hub.far_files import FarFiles, FarRepo
from opsctl.transfer.hub.hub_errors import NotNow
from trainer.formats.checkpoint.manifest import (
    LARGEST_MANIFEST_BYTES,
    MANIFEST,
    Manifest,
    decode_manifest,
    iteration_of,
)
from trainer.formats.errors import CheckpointError

#: Where a run's training log is in its repository, as in its output folder.
MAIN_LOG = "logs/main_log.txt"
_IN_FOLDER = re.compile(rf"(?:.*/)?(?P<tag>global_step\d+)/{re.escape(MANIFEST)}")
#: So many checkpoints that turn out to be incomplete are looked at before older ones are left alone.
_LOOKED_AT = 5


@dataclass(frozen=True)
class FarCheckpoint:
    """A checkpoint on the hub of which every file is there."""

    where: str  # folder, or `branch or tag NAME`
    manifest: Manifest
    sent_at: datetime | None  # its manifest, which goes last; None: the hub does not tell


@dataclass(frozen=True)
class FarRun:
    """The hub's data of a training."""

    repo: FarRepo
    at: datetime  # by the hub's clock where it told one
    log: str  # path in the repository
    log_commit: str | None  # None: there is no log
    log_sent_at: datetime | None  # when its last change was committed; None: the hub does not tell
    measured: Measured
    watchdog: Pulse | Alert | None  # what one last said in the log's end
    checkpoint: FarCheckpoint | None
    incomplete: tuple[str, ...]  # newer ones that are there in part: where, and what is missing


def far_run(files: FarFiles) -> FarRun:
    """One look. Raises `NotNow`, OpsctlError."""
    look = files.look(MAIN_LOG)
    measured, watchdog, sent_at = Measured(), None, None
    if look is not None:
        with tempfile.TemporaryFile() as copy:  # its end, at the place where the log has it
            start = max(0, look.size_bytes - TAIL_BYTES)
            os.ftruncate(copy.fileno(), look.size_bytes)
            copy.seek(start)
            copy.writelines(files.read(MAIN_LOG, look, start, look.size_bytes))
            copy.flush()
            measured, watchdog = recent_in(copy.fileno())
        sent_at = files.changed_at([MAIN_LOG], look.commit).get(MAIN_LOG)
    checkpoint, incomplete = _last_complete(files, files.sizes())
    return FarRun(
        repo=files.repo,
        at=(files.told_at or now()).astimezone(),
        log=MAIN_LOG,
        log_commit=look.commit if look else None,
        log_sent_at=sent_at,
        measured=measured,
        watchdog=watchdog,
        checkpoint=checkpoint,
        incomplete=incomplete,
    )


@dataclass(frozen=True)
class _Place:
    """A possible place of a checkpoint."""

    iteration: int
    files: FarFiles
    folder: str  # ends in / unless it is the root
    where: str


def _last_complete(files: FarFiles, sizes: dict[str, int]) -> tuple[FarCheckpoint | None, tuple[str, ...]]:
    places = [*_in_folders(files, sizes), *_in_references(files)]
    incomplete: list[str] = []
    for place in sorted(places, key=lambda one: one.iteration, reverse=True)[:_LOOKED_AT]:
        there = sizes if place.files is files else place.files.sizes()
        found = _complete(place, there)
        if isinstance(found, FarCheckpoint):
            return found, tuple(incomplete)
        incomplete.append(f"{place.where}: {found}")
    return None, tuple(incomplete)


def _in_folders(files: FarFiles, paths: Iterable[str]) -> list[_Place]:
    found = [match for path in paths if (match := _IN_FOLDER.fullmatch(path))]
    folders = [(iteration_of(one["tag"]), one.group().removesuffix(MANIFEST)) for one in found]
    return [_Place(number, files, folder, folder.rstrip("/")) for number, folder in folders if number is not None]


def _in_references(files: FarFiles) -> list[_Place]:
    return [
        _Place(number, FarFiles(replace(files.repo, revision=name)), "", f"branch or tag {name}")
        for name in files.references()
        if (number := iteration_of(name)) is not None and name != files.repo.revision
    ]


def _complete(place: _Place, sizes: dict[str, int]) -> FarCheckpoint | str:
    """Return the checkpoint, or why it is none."""
    path = place.folder + MANIFEST
    if sizes.get(path, LARGEST_MANIFEST_BYTES + 1) > LARGEST_MANIFEST_BYTES:
        return f"no {MANIFEST}"
    look = place.files.look(path)
    if look is None:
        raise NotNow(f"{path} went away while it was read")
    try:
        manifest = decode_manifest(place.files.read_all(path, look), path)
    except CheckpointError as error:
        return str(error)
    if manifest.iteration != place.iteration:
        return f"its {MANIFEST} is that of iteration {manifest.iteration}"
    wrong = [name for name, file in manifest.files.items() if sizes.get(place.folder + name) != file.bytes]
    if wrong:
        return f"{len(manifest.files) - len(wrong)} of {len(manifest.files)} files are there"
    return FarCheckpoint(place.where, manifest, place.files.changed_at([path], look.commit).get(path))
