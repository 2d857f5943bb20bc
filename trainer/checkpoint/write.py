"""Writing a snapshot durably, with checksums computed on the way to the disk."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash

from trainer.core.files import create_file, make_folder
from trainer.formats.checkpoint.manifest import SavedFile
from trainer.formats.errors import CheckpointError

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
