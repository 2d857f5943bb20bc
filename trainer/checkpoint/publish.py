"""Durable writing of a checkpoint, and its publication as the latest in one atomic step."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import deepspeed
import msgspec
import torch
import torch.distributed as dist
import xxhash

from trainer.checkpoint.destination import Destination, Overtaken, as_checkpoint_error, refuse_if_overtaken
from trainer.core.console import complain
from trainer.core.files import HeldFolder, create_file, fsync, make_folder, write_atomically
from trainer.formats.checkpoint.manifest import (
    LATEST,
    MANIFEST,
    TEMPORARY,
    Manifest,
    SavedFile,
    check_sizes,
    fault_of,
    read_manifest,
    replaced_under,
    set_aside,
    tag_of,
)
from trainer.formats.checkpoint.partitions import is_optimizer_file
from trainer.formats.checkpoint.starting import latest_beyond
from trainer.formats.errors import CheckpointError
from trainer.formats.json_text import json_file_text
from trainer.parallel.agreement import Refusal, from_first_rank, on_every_rank


def clear_leftovers(folder: HeldFolder) -> None:
    """Restore what was set aside and not replaced, and remove all other unfinished files. Raises OSError.

    Files that cannot be removed stay and are reported: the next save uses other folder names.
    """
    root = folder.place()
    kept = {one for one, was in replaced_under(root) if not _is_replaced(one, was)}
    for leftover in root.glob(f"{TEMPORARY}*"):
        if leftover not in kept:
            shutil.rmtree(leftover, ignore_errors=True)
            if leftover.exists():
                complain(folder.said(f"trainer: {leftover}, left by an interrupted save, cannot be removed"))
    for leftover in root.glob(".*.tmp"):  # `write_atomically`'s files for `latest` and DeepSpeed's programs
        leftover.unlink(missing_ok=True)


def _is_replaced(set_aside: Path, was: Path) -> bool:
    """Return True if the folder that was set aside is obsolete: replaced, or already restored."""
    if was.exists():
        return fault_of(was) is None or not _is_whole(set_aside)
    if _is_whole(set_aside):
        set_aside.rename(was)
        fsync(was.parent)
    return True


def _is_whole(folder: Path) -> bool:
    try:
        check_sizes(folder, read_manifest(folder))
    except CheckpointError:
        return False
    return True


# DeepSpeed's programs for the files with optimizer states, and their folders.
_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")
_SCRIPTS_FOLDER = Path(deepspeed.__file__).parent / "utils"
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def make_room(destination: Destination, iteration: int) -> str:
    """Return the name of a folder for a new checkpoint, after removing the leftovers of a crash.

    The name is unique to this save, because a killed job may still be writing. Collective. Raises Refusal, and
    Overtaken if another writer has the training: the leftovers may belong to it.
    """
    refuse_if_overtaken(destination.lease)

    def make() -> str:
        with as_checkpoint_error(destination.folder):
            destination.make()
            clear_leftovers(destination.folder)
        return f"{TEMPORARY}{tag_of(iteration)}.{secrets.token_hex(4)}"

    return from_first_rank(make, (CheckpointError,))


def publish(
    destination: Destination, name: str, manifest: Manifest, written: Callable[[], Mapping[str, SavedFile]]
) -> None:
    """Publish the folder `name`, with the files of all ranks, as the manifest's checkpoint and the latest.

    written: the result of `write` on this rank, or its CheckpointError. `manifest` has no files yet. Collective.
    Raises Refusal on every rank if one of them could not write or the first could not publish, and Overtaken if
    another writer has the training. The folder is then removed, and the earlier checkpoint stays the latest.
    """
    try:
        own = on_every_rank(lambda: _written(destination, written), (CheckpointError,))
        parts: list[Mapping[str, SavedFile]] = [{}] * dist.get_world_size()
        dist.all_gather_object(parts, own)
        files = {name: file for part in parts for name, file in sorted(part.items())}
        whole = msgspec.structs.replace(manifest, files=files)
        lost = from_first_rank(lambda: _publish(destination, name, whole), (CheckpointError,))
        if lost is not None:
            raise Overtaken(lost)
    except Refusal as refusal:
        if dist.get_rank() == 0:
            with contextlib.suppress(OSError):
                # On a full disk, the record of this failure and the next task need the space.
                shutil.rmtree(destination.folder.place() / name, ignore_errors=True)
        if not isinstance(refusal, Overtaken):  # the new writer removes unfinished files
            refuse_if_overtaken(destination.lease)
        raise


def _written(destination: Destination, written: Callable[[], Mapping[str, SavedFile]]) -> Mapping[str, SavedFile]:
    with as_checkpoint_error(destination.folder):
        return written()


def _publish(destination: Destination, name: str, manifest: Manifest) -> str | None:
    """Check, describe, rename and point `latest` at it, on the first rank; return why another writer must do it.

    Raises CheckpointError, also if `latest` is further: a writer without a lease, or with a lost one, was here.
    """
    with as_checkpoint_error(destination.folder):
        root = destination.folder.place()
        folder = root / name
        _check_sizes(folder, manifest)
        with destination.shown() as lost:
            if lost is not None:
                return lost
            later = latest_beyond(root, manifest.iteration)
            if later is not None:
                raise CheckpointError(
                    f"{root / LATEST} names {later.name}, which another writer has published, so "
                    f"{tag_of(manifest.iteration)} is not: see opsctl attempts; opsctl checkpoints repoint reverts that"
                )
            _point_at(root, folder, manifest)
        # Only what this save has replaced: after the lock, other folders may be those of a new writer.
        for replaced in (folder, set_aside(root / tag_of(manifest.iteration))):
            shutil.rmtree(replaced, ignore_errors=True)
    return None


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for name, file in manifest.files.items():
        size = (folder / name).stat().st_size
        if size != file.bytes:
            raise CheckpointError(f"{folder / name} has {size} bytes instead of {file.bytes}: check the file system")


def _point_at(root: Path, folder: Path, manifest: Manifest) -> None:
    if any(is_optimizer_file(name) for name in manifest.files):
        _leave_scripts(root)
    write_atomically(folder / MANIFEST, json_file_text(manifest.as_json()))
    final = root / tag_of(manifest.iteration)
    if final.exists():
        _put_in_place_of(folder, final)
    else:
        folder.rename(final)
    fsync(root)
    write_atomically(root / LATEST, final.name)


def _leave_scripts(root: Path) -> None:
    """Copy DeepSpeed's programs that merge shards to the place where DeepSpeed stores them, next to the checkpoints."""
    for name in _SCRIPTS:
        text, own = (_SCRIPTS_FOLDER / name).read_text(), root / name
        if not own.is_file() or own.read_text() != text:
            write_atomically(own, text, runnable=True)


def _put_in_place_of(new: Path, old: Path) -> None:
    """Swap the two folders' names in one step, so that `latest` always names one. `new` then holds the old one."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # some C libraries lack it
        if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return
    # File systems without it (NFS): two renames. After a crash between them the next save restores the older one.
    old.rename(set_aside(old))
    new.rename(old)


# torch.save writes a tensor in one piece and dozens of small pieces around it. Only the small ones are buffered.
_BUFFER_BYTES = 1 << 20


def write(snapshot: Mapping[str, Callable[[], Any]], folder: Path, durably: bool = True) -> dict[str, SavedFile]:
    """Write and fsync each of the snapshot's files in `folder`; return sizes and checksums by name.

    Without `durably` the system writes the files out later, and the caller fsyncs all at the end. Not collective: it
    only touches files, so it may run in another thread. Raises CheckpointError, one line with the disk's error.
    """
    try:
        make_folder(folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    return {name: _write_file(state, folder / name, durably) for name, state in snapshot.items()}


def _write_file(state: Callable[[], Any], target: Path, durably: bool) -> SavedFile:
    sink = None
    try:
        with os.fdopen(create_file(target), "wb", buffering=_BUFFER_BYTES) as file:
            sink = _HashingSink(file)
            torch.save(state(), sink)  # type: ignore[arg-type]
            file.flush()
            if durably:
                os.fsync(file.fileno())
            else:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # Linux begins to write it out
    except (OSError, RuntimeError) as error:
        # torch's archive writer replaces the file's error by its own, which does not mention the disk.
        raise _cannot_write(target, sink.error if sink is not None and sink.error is not None else error) from error
    return SavedFile(sink.bytes_written, sink.digest.hexdigest())


def _cannot_write(target: Path, error: Exception) -> CheckpointError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return CheckpointError(f"cannot write {target}: {reason}; the previous checkpoint is unchanged")


class _HashingSink(io.RawIOBase):
    """A file for torch.save that also computes a checksum."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self.digest = xxhash.xxh64()
        self.bytes_written = 0
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.digest.update(view)
        try:
            self._file.write(view)
        except OSError as error:
            self.error = error
            raise
        self.bytes_written += len(view)
        return len(view)
