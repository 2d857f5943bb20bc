"""Writing DeepSpeed's checkpoint files durably, with their checksums computed on the way to the disk."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
import xxhash
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine

from trainer.files import SHARED_FILE_MODE
from trainer.formats.errors import CheckpointError


class RecordingCheckpointEngine(CheckpointEngine):
    """Stands in for DeepSpeed's writer during one save. `files`: name -> bytes, xxh64 of what this rank wrote."""

    def __init__(self, with_optimizer: bool = True) -> None:
        super().__init__()
        self._with_optimizer = with_optimizer
        self.name = "RecordingCheckpointEngine"
        self.files: dict[str, dict[str, Any]] = {}

    def create(self, info: CheckpointCommitInfo) -> None:
        pass

    def commit(self, info: CheckpointCommitInfo) -> bool:
        return True

    def load(self, path: str, map_location: Any = None) -> Any:
        raise NotImplementedError("this engine only writes")

    def save(self, state_dict: Any, path: str) -> None:
        target = Path(path)
        if not self._with_optimizer and isinstance(state_dict, dict):
            state_dict = {key: None if key == "optimizer" else value for key, value in state_dict.items()}
        sink = None
        try:
            with target.open("wb", buffering=0) as file:
                os.fchmod(file.fileno(), SHARED_FILE_MODE)
                sink = _HashingSink(file)
                torch.save(state_dict, sink)  # type: ignore[arg-type]
                os.fsync(file.fileno())
        except (OSError, RuntimeError) as error:
            # torch's archive writer turns an error of the file into one of its own, which says nothing of the disk.
            cause = sink.error if sink is not None and sink.error is not None else error
            reason = cause.strerror if isinstance(cause, OSError) else str(cause)
            raise CheckpointError(f"cannot write {target}: {reason}; the checkpoint before it is untouched") from error
        self.files[target.name] = {"bytes": sink.bytes_written, "xxh64": sink.digest.hexdigest()}


class _HashingSink(io.RawIOBase):
    """What torch.save writes to: passes everything on to a file and into a checksum."""

    def __init__(self, file: io.RawIOBase) -> None:
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
        left = view
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            self.error = error
            raise
        self.bytes_written += len(view)
        return len(view)
