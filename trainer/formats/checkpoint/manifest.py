"""The format of a checkpoint on disk: its folder's name, `latest`, and `manifest.json` with sizes and checksums.

A folder without a manifest is an unfinished checkpoint. The manifest is JSON, so it can be read without torch and
without unpickling.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from trainer.core.files import read_plain
from trainer.formats.checkpoint.exchanged import digest_of, read_verification
from trainer.formats.checkpoint.history import Progress, Saved, Start
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import plain
from trainer.recipe.spike_guard import GuardState

SCHEMA_VERSION = 2
#: Schemas that can be read. The first had no parameters and nothing below `files`.
_READABLE = range(1, SCHEMA_VERSION + 1)
MANIFEST = "manifest.json"
LATEST = "latest"
TEMPORARY = ".tmp-"
#: The folders of snapshots in host memory begin so, then the job's id.
MEMORY, MEMORY_PREFIX = Path("/dev/shm"), "trainer-memory"
LARGEST_MANIFEST_BYTES = 1 << 26
#: Separator between a checkpoint's fault and the advice.
WAY_OUT = "; "
_SET_ASIDE = f"{TEMPORARY}replaced-"
# A file's name: no control characters and no path outside the folder.
_INSIDE = re.compile(r"(?!(?:.*/)?\.{0,2}(?:/|\Z))[^\x00-\x1f\x7f]+")
_TAG = re.compile(r"global_step([0-9]{1,18})")
_CHUNK_BYTES = 1 << 22
_LARGEST_POINTER_BYTES = 1 << 10


class SavedFile(msgspec.Struct, frozen=True):
    """One file of a checkpoint, as it was written."""

    bytes: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    xxh64: str  # 16 hexadecimal digits


class SavedParameter(msgspec.Struct, frozen=True):
    """One whole parameter, with the facts that decide which part a tensor-parallel rank's file holds."""

    name: str  # in the model
    layer: int  # of the pipeline: the number of its file
    name_in_layer: str  # in that file
    shape: tuple[int, ...]
    decays: bool  # which of the optimizer's two groups has it
    split_dim: int | None = None  # split over tensor-parallel ranks along it; None: each has all of it
    token_rows: int | None = None  # rows of vocabulary tokens; the rest is padding


class Original(msgspec.Struct, frozen=True):
    """The checkpoint of another training program, of which a folder has hard links."""

    path: str  # absolute: a folder or a file
    bytes: int  # of all its files
    changed_at: float  # of the file that was changed last, in seconds since 1970
    before_run: bool = False  # it was there before the run that adopted it


# mypy treats a struct as a dataclass, which could not be frozen if its base is not.
class Manifest(Progress, frozen=True, kw_only=True):  # type: ignore[misc]
    """One checkpoint, and the progress of its training.

    A training that resumes from it must agree with its `model`, `training` and `learning_rate`. In manifests of schema
    1, the fields below `files` are empty.
    """

    schema_version: int = SCHEMA_VERSION
    precision: str  # "fp32", "bf16" or "fp16"
    layout: dict[str, int | str]  # tensor, pipeline, data, world_size, zero_stage, partition_method, optimizer
    model: dict[str, Any]  # the options that decide the shape of the weights
    learning_rate: dict[str, Any]  # the fields of the schedule
    files: dict[str, SavedFile]  # by name
    parameters: tuple[SavedParameter, ...] = ()  # all of the model, in its order
    #: The identity of the training: seed, sequence length, data by content, tokenizer.
    training: dict[str, Any] = msgspec.field(default_factory=dict)
    #: Settings that may change during the training, at the save: clipping, decay, betas, loss scaling, batch sizes.
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    loss: float | None = None  # of the last step
    saved: Saved | None = None
    history: tuple[Start, ...] = ()  # every start of the training that led here, the first one first
    spike_guard: GuardState | None = None  # its state, if the training has or had one
    pinned: bool = False  # saved because its iteration was named; pruning keeps it
    original: Original | None = None  # of another training program; None: of our trainer
    not_finite: str | None = None  # a clause: which weights, optimizer states or loss are NaN or infinite

    def as_json(self) -> dict[str, Any]:
        """Return the manifest's JSON object, the schema's version first."""
        value: dict[str, Any] = plain(self)
        return {"schema_version": value.pop("schema_version"), **value}


class _Schema(msgspec.Struct, frozen=True):
    schema_version: int


@dataclass(frozen=True)
class Found:
    """A checkpoint on disk and its manifest."""

    folder: Path
    manifest: Manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint. Raises CheckpointError if it is missing, damaged or of another schema."""
    with _with_advice(folder.parent):
        return _read_manifest(folder)


def _read_manifest(folder: Path) -> Manifest:
    return read_manifest_file(folder / MANIFEST)


def read_manifest_file(path: Path) -> Manifest:
    """Read a manifest file in any folder, as `read_manifest` does, but without advice in the error."""
    try:
        data = read_plain(path, LARGEST_MANIFEST_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing, so this checkpoint is unfinished") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read ({type(error).__name__}: {error})") from None
    return decode_manifest(data, path)


def decode_manifest(data: bytes, place: object) -> Manifest:
    """Decode a manifest. `place` is its source, for messages. Raises CheckpointError."""
    try:
        version = msgspec.json.decode(data, type=_Schema).schema_version
        if version not in _READABLE:
            raise CheckpointError(
                f"{place} has schema version {version}, this trainer reads up to {SCHEMA_VERSION}: "
                "load it with the trainer that wrote it"
            )
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, ValueError) as error:
        raise CheckpointError(f"{place} cannot be read ({type(error).__name__}: {error})") from None
    outside = next((name for name in manifest.files if not _INSIDE.fullmatch(name)), None)
    if outside is not None:
        raise CheckpointError(f"{place} names {outside!a}, which is not a file of the checkpoint")
    return manifest


def tag_of(iteration: int) -> str:
    """Return the name of a checkpoint's folder, which is also the content of `latest`."""
    return f"global_step{iteration}"


def iteration_of(tag: str) -> int | None:
    """Return the iteration of the checkpoint named `tag`; None if it is no checkpoint's name."""
    match = _TAG.fullmatch(tag)
    return int(match[1]) if match else None


def set_aside(folder: Path) -> Path:
    """Return the folder that keeps a whole checkpoint while another takes its name, if names cannot be swapped.

    A crash may leave it there. Readers of the latest checkpoint find it, and the next save moves it back.
    """
    return folder.with_name(f"{_SET_ASIDE}{folder.name}")


def replaced_under(root: Path) -> list[tuple[Path, Path]]:
    """Return (current folder, original folder) of all checkpoints under `root` that crashes left set aside."""
    return [(one, root / one.name.removeprefix(_SET_ASIDE)) for one in root.glob(f"{_SET_ASIDE}*")]


def checkpoint_folders(root: Path) -> list[Path]:
    """Return all folders with a checkpoint's name, finished or not, the newest first; empty if `root` is missing.

    Raises CheckpointError if `root` cannot be listed, because that does not mean that it is empty.
    """
    try:
        names = [path.name for path in root.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{root} cannot be read: {error.strerror}") from None
    iterations = {name: iteration_of(name) for name in names}
    numbered = sorted(((number, name) for name, number in iterations.items() if number is not None), reverse=True)
    return [root / name for _, name in numbered]


def fault_of(folder: Path) -> str | None:
    """Return why a checkpoint is not complete, in a clause; None when it is.

    The manifest has to be the checkpoint's own and every size has to be right. The newest check of the bytes must not
    have found damage, and its record has to be readable.
    """
    try:
        return start_fault_of(folder) or recorded_damage(folder)
    except CheckpointError as error:
        return str(error)


def start_fault_of(folder: Path) -> str | None:
    """Return why a training cannot start from a checkpoint, in a clause; None if it can.

    It is `fault_of`, except that an unreadable verification record is ignored: the training reads every byte itself,
    and such a record must not stop it or make it use an earlier checkpoint.
    """
    try:
        manifest = _read_manifest(folder)
        check_files(folder, manifest)
    except CheckpointError as error:
        return str(error)
    if tag_of(manifest.iteration) != folder.name:
        return f"{folder / MANIFEST} is that of {tag_of(manifest.iteration)}"
    return None


def is_sound(folder: Path) -> bool:
    """Return whether a training can continue from the checkpoint: it is complete and holds only finite numbers."""
    return fault_of(folder) is None and _read_manifest(folder).not_finite is None


def newest_complete(root: Path) -> Found | None:
    """Return the checkpoint under `root` with the highest iteration and no fault. `latest` does not matter.

    Raises CheckpointError if `root` cannot be listed.
    """
    folder = next((one for one in checkpoint_folders(root) if is_sound(one)), None)
    return Found(folder, _read_manifest(folder)) if folder else None


def latest_folder(root: Path) -> Path | None:
    """Return the folder that `root/latest` names; None if there is neither such a file nor a checkpoint.

    A single whole checkpoint needs no `latest`. Raises CheckpointError, with advice, if `latest` names a missing
    folder, or if it is missing and there are several checkpoints.
    """
    with _with_advice(root):
        return named_by_latest(root)


def named_by_latest(root: Path) -> Path | None:
    """Return the same as `latest_folder`, but raise errors without advice."""
    pointer = root / LATEST
    try:
        tag = read_plain(pointer, _LARGEST_POINTER_BYTES).decode(errors="replace").strip()
    except FileNotFoundError:
        there = checkpoint_folders(root)
        if not there:
            return None
        if len(there) == 1 and fault_of(there[0]) is None:  # the first save was interrupted before it wrote `latest`
            return there[0]
        raise CheckpointError(f"{pointer} is missing, but {root} has {_counted(there)}") from None
    except OSError as error:
        raise CheckpointError(f"{pointer} cannot be read: {error.strerror}") from None
    if iteration_of(tag) is None:
        raise CheckpointError(f"{pointer} does not name a checkpoint: {tag!r}")
    folder = root / tag
    if not folder.is_dir():
        if set_aside(folder).is_dir():
            return set_aside(folder)
        raise CheckpointError(f"{pointer} names {tag}, which is not in {root}")
    return folder


def latest_checkpoint(root: Path) -> Found | None:
    """Return the checkpoint from which a training resumes, sizes checked; None if the training starts from nothing.

    Raises CheckpointError, with advice, in all other cases.
    """
    with _with_advice(root):
        folder = named_by_latest(root)
        if folder is None:
            return None
        manifest = _read_manifest(folder)
        check_files(folder, manifest)
        return Found(folder, manifest)


def check_files(folder: Path, manifest: Manifest) -> None:
    """Raise CheckpointError if a size is wrong, or if the newest check of the bytes found damage."""
    check_sizes(folder, manifest)
    _refuse_damage(folder)


def _refuse_damage(folder: Path) -> None:
    """Raise CheckpointError if damage is recorded. An unreadable record is ignored."""
    try:
        damage = recorded_damage(folder)
    except CheckpointError:
        return
    if damage:
        raise CheckpointError(damage)


def recorded_damage(folder: Path) -> str | None:
    """Return the damage that the newest check of this checkpoint's bytes found, in a clause; None without.

    Raises CheckpointError if a record cannot be read.
    """
    found = read_verification(folder)
    if found is None or not found.problems:
        return None
    try:
        manifest = read_plain(folder / MANIFEST, LARGEST_MANIFEST_BYTES)
    except OSError as error:
        raise CheckpointError(f"{folder / MANIFEST} cannot be read: {error.strerror}") from None
    if found.manifest_xxh64 != digest_of(manifest):
        return None
    more = f" and {len(found.problems) - 1} more" if len(found.problems) > 1 else ""
    on = f" on {found.at.isoformat()}" if found.at else ""
    again = f"opsctl checkpoints verify --step {iteration_of(folder.name)} checks it again"
    return f"{folder.name} is damaged, as a check of its bytes{on} found: {found.problems[0]}{more} ({again})"


def check_recorded_damage(folder: Path) -> None:
    """Raise CheckpointError, with advice, if `recorded_damage` finds any."""
    with _with_advice(folder.parent):
        _refuse_damage(folder)


def check_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise CheckpointError for the first file that is missing or has another size than it was written with."""
    for name, file in manifest.files.items():
        path = folder / name
        try:
            found = path.stat()
        except OSError as error:
            raise CheckpointError(f"{path} is missing or unreadable ({error.strerror})") from None
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{path} is not a regular file")
        size = found.st_size
        if size != file.bytes:
            raise CheckpointError(f"{path} has {size} bytes instead of {file.bytes}")


def check_checksums(folder: Path, manifest: Manifest, part: int = 0, parts: int = 1) -> None:
    """Read every `parts`-th file from `part` on. Raises CheckpointError for the first whose contents changed."""
    for name in sorted(manifest.files)[part::parts]:
        found = checksum(folder / name)
        if found != manifest.files[name].xxh64:
            with _with_advice(folder.parent, but=folder):
                raise CheckpointError(f"{folder / name} has checksum {found} instead of {manifest.files[name].xxh64}")


def checksum(path: Path) -> str:
    """Return the xxh64 of a file, 16 hexadecimal digits. Raises OSError, also if it is not a regular file."""
    import xxhash

    digest = xxhash.xxh64()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return str(digest.hexdigest())


@contextlib.contextmanager
def _with_advice(root: Path, but: Path | None = None) -> Iterator[None]:
    """Add to a CheckpointError which complete checkpoint of `root`, other than `but`, can be loaded instead."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{error}{WAY_OUT}{_way_out(root, but)}") from None


def _way_out(root: Path, but: Path | None) -> str:
    try:
        there = [one for one in checkpoint_folders(root) if one != but]
    except CheckpointError:
        return "see the file system"
    complete = next((one for one in there if is_sound(one)), None)
    if complete is None:
        return f"no {'other ' if but else ''}checkpoint in {root} is complete: restore one, or load from another folder"
    to = f" --to {iteration_of(complete.name)}" if but else ""
    return f"the newest complete checkpoint is {complete.name}: opsctl checkpoints repoint{to} makes it the latest"


def _counted(there: list[Path]) -> str:
    return f"{len(there)} checkpoints" if len(there) > 1 else there[0].name
