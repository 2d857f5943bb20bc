"""Export of one checkpoint as a transformers folder: planned from shapes, written to a temporary folder, renamed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trainer.checkpoint.saved_state import SavedState
from trainer.convert.hf.documents import About, Documents, documents
from trainer.convert.hf.saved_model import SavedModel
from trainer.convert.hf.tensor_file import TensorFile, divided, write_tensors
from trainer.convert.output import being_written
from trainer.core.files import write_atomically
from trainer.data.program import Progress
from trainer.formats.checkpoint.exchanged import ExportedModel
from trainer.formats.checkpoint.manifest import (
    Found,
    Manifest,
    checkpoint_folders,
    fault_of,
    iteration_of,
    latest_checkpoint,
    read_manifest,
    tag_of,
)
from trainer.formats.errors import CheckpointError

FILE_BYTES = 5_000_000_000


@dataclass(frozen=True)
class Export:
    """The planned folder of one checkpoint."""

    model: SavedModel
    manifest: Manifest
    files: list[TensorFile]
    documents: Documents

    @property
    def bytes(self) -> int:
        """The size of the whole folder."""
        return sum(file.bytes for file in self.files) + self.documents.bytes

    def report(self, folder: Path, state: str) -> ExportedModel:
        """Return the record to print."""
        notices = []
        if self.model.widened:
            notices.append(f"saved without fp32 weights: those in {self.manifest.precision} are widened")
        if not self.documents.has_tokenizer:
            notices.append("no tokenizer: generation cannot find the end of a text")
        return ExportedModel(
            iteration=self.manifest.iteration,
            folder=str(folder.absolute()),
            state=state,
            format=self.model.family.name,
            dtype=self.model.dtype,
            files=len(self.files),
            parameters=sum(entry.size for entry in self.model.entries),
            bytes=self.bytes,
            tokenizer=self.documents.has_tokenizer,
            notices=notices,
        )


def planned(found: Found, dtype: str | None, about: About) -> Export:
    """Plan the folder of a checkpoint. Raises CheckpointError if no family can express the model."""
    model = SavedModel(SavedState(found.folder, found.manifest), found.manifest, dtype)
    files = divided(model.entries, FILE_BYTES)
    return Export(model, found.manifest, files, documents(model, found.manifest, files, about))


def write(export: Export, target: Path) -> None:
    """Write the folder, which is missing or empty. Raises CheckpointError and OSError, and removes the folder then."""
    total = sum(entry.bytes for entry in export.model.entries)
    with being_written(target, export.bytes) as folder, Progress(f"writing {target.name}", total) as progress:
        done = 0
        for file in export.files:
            for written in write_tensors(folder, file, export.model.tensor):
                done += written
                progress.reached(done)
        for name, text in export.documents.texts.items():
            write_atomically(folder / name, text)


#: Number of available checkpoints to print.
_NAMED = 10


def found_checkpoint(root: Path, step: int | None) -> Found:
    """Return the checkpoint of iteration `step`, or the latest one (None), complete by the sizes of its files.

    Raises CheckpointError if it is missing or incomplete.
    """
    if step is None:
        latest = latest_checkpoint(root)
        if latest is None:
            raise CheckpointError(f"{root} has no checkpoints")
        return latest
    folder = root / tag_of(step)
    if not folder.is_dir():
        there = sorted(number for one in checkpoint_folders(root) if (number := iteration_of(one.name)) is not None)
        newest = ", ".join(map(str, there[-_NAMED:])) or "none"
        raise CheckpointError(f"{folder.name} is not in {root}: available are {newest}")
    if fault := fault_of(folder):
        raise CheckpointError(f"{folder.name} is not complete: {fault}")
    return Found(folder, read_manifest(folder))
