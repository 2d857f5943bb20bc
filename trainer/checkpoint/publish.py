"""Writing a checkpoint durably, and publishing it as the latest in one atomic step."""

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
    """Put back what was set aside and not replaced, and remove whatever else no save has finished. Raises OSError.

    What cannot be removed stays and is told: the names of the next save's folders are its own.
    """
    root = folder.place()
    kept = {one for one, was in replaced_under(root) if not _is_replaced(one, was)}
    for leftover in root.glob(f"{TEMPORARY}*"):
        if leftover not in kept:
            shutil.rmtree(leftover, ignore_errors=True)
            if leftover.exists():
                complain(folder.said(f"trainer: {leftover}, left by a save that was cut off, cannot be removed"))
    for leftover in root.glob(".*.tmp"):  # beside `latest` and DeepSpeed's programs, by `write_atomically`
        leftover.unlink(missing_ok=True)


def _is_replaced(set_aside: Path, was: Path) -> bool:
    """Whether nobody needs what was set aside any more: another one has its place, or it has it again."""
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


# DeepSpeed's programs for the files with optimizer states, and where they are.
_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")
_SCRIPTS_FOLDER = Path(deepspeed.__file__).parent / "utils"
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def make_room(destination: Destination, iteration: int) -> str:
    """The name of a folder to write a checkpoint into, without what a crash left beside it.

    No other save has the name: what is left of a killed job may still be writing. Collective. Raises Refusal, of a
    training that was overtaken Overtaken: what is beside it may be its successor's.
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
    """Make the folder `name`, in which every rank has its files, the checkpoint of the manifest, and the latest.

    written: what `write` returned on this rank, or raises its CheckpointError. Collective. Raises Refusal on every rank
    when one of them could not write or the first could not publish, and Overtaken when that is another writer's to do;
    the folder is gone then, and the checkpoint before stays the latest. `manifest` comes with no files.
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
                # On a full disk its room is what the record of this failure, and the next task, cannot do without.
                shutil.rmtree(destination.folder.place() / name, ignore_errors=True)
        if not isinstance(refusal, Overtaken):  # who overtakes clears away what is half written: no failure of ours
            refuse_if_overtaken(destination.lease)
        raise


def _written(destination: Destination, written: Callable[[], Mapping[str, SavedFile]]) -> Mapping[str, SavedFile]:
    with as_checkpoint_error(destination.folder):
        return written()


def _publish(destination: Destination, name: str, manifest: Manifest) -> str | None:
    """On the first rank: check, describe, rename, point at it; returns why another writer would have to do it.

    Raises CheckpointError, also where `latest` is further: a writer without a lease, or with a lost one, has been here.
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
                    f"{tag_of(manifest.iteration)} is not: see opsctl attempts; opsctl checkpoints repoint goes back"
                )
            _point_at(root, folder, manifest)
        # Only what this save has replaced: past the lock, the others may be those of a writer that has taken over.
        for replaced in (folder, set_aside(root / tag_of(manifest.iteration))):
            shutil.rmtree(replaced, ignore_errors=True)
    return None


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for name, file in manifest.files.items():
        size = (folder / name).stat().st_size
        if size != file.bytes:
            raise CheckpointError(f"{folder / name} has {size} bytes, {file.bytes} were written: see the file system")


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
    """DeepSpeed's programs that put shards together again, where DeepSpeed leaves them: beside the checkpoints."""
    for name in _SCRIPTS:
        text, own = (_SCRIPTS_FOLDER / name).read_text(), root / name
        if not own.is_file() or own.read_text() != text:
            write_atomically(own, text, runnable=True)


def _put_in_place_of(new: Path, old: Path) -> None:
    """Swap the two folders' names in one step, so that `latest` never names nothing; `new` then holds the old one."""
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(AttributeError):  # a C library without it
        if libc.renameat2(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE) == 0:
            return
    # A file system that cannot (NFS): two renames. After a crash between them the next save puts the older one back.
    old.rename(set_aside(old))
    new.rename(old)


# torch.save writes a tensor in one piece and dozens of pieces of some bytes around it: only these are put together.
_BUFFER_BYTES = 1 << 20


def write(snapshot: Mapping[str, Callable[[], Any]], folder: Path, durably: bool = True) -> dict[str, SavedFile]:
    """Write each of the snapshot's files into `folder` and fsync it; sizes and checksums by name.

    Not durably: whoever writes many leaves it to the system to write them out, and fsyncs all at the end.

    Not collective: it touches nothing but files, so it may run in another thread. Raises CheckpointError, one line with
    the disk's reason.
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
        # torch's archive writer turns an error of the file into one of its own, which says nothing of the disk.
        raise _cannot_write(target, sink.error if sink is not None and sink.error is not None else error) from error
    return SavedFile(sink.bytes_written, sink.digest.hexdigest())


def _cannot_write(target: Path, error: Exception) -> CheckpointError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return CheckpointError(f"cannot write {target}: {reason}; the checkpoint before it is untouched")


class _HashingSink(io.RawIOBase):
    """What torch.save writes to: passes everything on to a file and into a checksum."""

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
