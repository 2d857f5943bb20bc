"""The state of a training as its repositories on the hub show it: log, last complete checkpoint, energy. Only reads."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path

from opsctl.core.errors import OpsctlError
from opsctl.core.timestamps import now
from opsctl.diagnosis.carbon.brief import MOST_FILES, EnergySeen, TooMany, energy_in
from opsctl.run.config.file_kinds import CHECKPOINTS, FOLDERS
from opsctl.run.config.schema import CarbonTable
from opsctl.run.logs.measurements import TAIL_BYTES, recent_in
from opsctl.run.logs.records import Alert, Measured, Pulse
from opsctl.transfer.hub.far_files import FarFiles, FarRepo, Look, repo_of
from opsctl.transfer.hub.far_log import MAIN_LOG, fetched_end
from opsctl.transfer.hub.hub_errors import Absent, NotNow
from opsctl.transfer.hub.place import LARGEST_NOTE_BYTES, NOTE, read_note
from trainer.formats.attempt.carbon import FILES
from trainer.formats.checkpoint.manifest import (
    LARGEST_MANIFEST_BYTES,
    MANIFEST,
    Manifest,
    decode_manifest,
    iteration_of,
)
from trainer.formats.errors import CheckpointError

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
class Elsewhere:
    """A kind that has another repository, and why nothing of it can be told from here, if so."""

    kind: str
    repo: str
    problem: str = ""


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
    energy: EnergySeen | None  # None: no records of it are there
    elsewhere: tuple[Elsewhere, ...] = ()


def far_run(files: FarFiles) -> FarRun:
    """One look. Raises `NotNow`, OpsctlError."""
    look = files.look(MAIN_LOG)
    measured, watchdog, sent_at = Measured(), None, None
    if look is not None:
        with fetched_end(files, look, TAIL_BYTES) as fd:
            measured, watchdog = recent_in(fd)
        sent_at = files.changed_at([MAIN_LOG], look.commit).get(MAIN_LOG)
    sizes = files.sizes()
    checkpoint, incomplete, energy = *_last_complete(files, sizes), far_energy(files, sizes)
    elsewhere = []
    for kind, repo in _other_repos(files, sizes).items():
        problem = ""
        try:
            if kind == CHECKPOINTS:
                checkpoint, incomplete = _last_complete(other := FarFiles(repo_of(repo)), other.sizes())
                checkpoint = checkpoint and replace(checkpoint, where=f"{checkpoint.where} of {repo}")
            elif kind == "carbon":
                energy = far_energy(other := FarFiles(repo_of(repo)), other.sizes())
        except (OpsctlError, Absent) as error:
            problem = str(error)
        elsewhere.append(Elsewhere(kind, repo, problem))
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
        energy=energy,
        elsewhere=tuple(elsewhere),
    )


def _other_repos(files: FarFiles, sizes: Mapping[str, int]) -> dict[str, str]:
    """Kind -> repository, of those that the run has elsewhere, by what its sync wrote there."""
    if sizes.get(NOTE, LARGEST_NOTE_BYTES + 1) > LARGEST_NOTE_BYTES:
        return {}
    look = files.look(NOTE)
    note = None if look is None else read_note(files.read_all(NOTE, look))
    return {} if note is None else {kind: repo for kind, repo in note.repos.items() if repo != files.repo.name}


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


#: Where a sync puts them.
FOLDER = FOLDERS["carbon"]
_LARGEST_BYTES = 32 << 20
_AT_ONCE = 8


def far_energy(files: FarFiles, sizes: Mapping[str, int]) -> EnergySeen | None:
    """Their sum, without the PUE of a run file that is not there; None where there are none. Raises OpsctlError.

    sizes: every file of the repository with its bytes.
    """
    records = {path: size for path, size in sizes.items() if _is_record(path)}
    if not records:
        return None
    if len(records) > MOST_FILES or sum(records.values()) > _LARGEST_BYTES:
        return EnergySeen(told=str(TooMany()))
    with tempfile.TemporaryDirectory(prefix="opsctl-carbon-") as folder, ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            found = pool.map(lambda one: files.read_all(one[0], Look(files.repo.revision, "", one[1])), records.items())
            for path, data in zip(records, found, strict=True):
                (Path(folder) / Path(path).name).write_bytes(data)
        except NotNow as late:
            return EnergySeen(told=f"not told now: {late}")
        return energy_in(Path(folder), CarbonTable())


def _is_record(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder == FOLDER and not name.startswith(".") and any(fnmatch(name, pattern) for pattern in FILES)
