"""Export of one checkpoint as a transformers folder: planned from shapes, written to a temporary folder, renamed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import xxhash

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
    files = divided(model.entries, FILE_BYTES, _notes(found.manifest))
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


def is_written(export: Export, target: Path) -> bool:
    """Return True if `target` has exactly these weights, complete, and a file for every other name."""
    there = all((target / name).is_file() for name in export.documents.texts)
    return there and all(file.is_written(target) for file in export.files)


def _notes(manifest: Manifest) -> dict[str, str]:
    """Return the notes in the files' headers, which identify the checkpoint. transformers requires `format`."""
    digest = xxhash.xxh64()
    for name, file in sorted(manifest.files.items()):
        digest.update(f"{name} {file.xxh64}\n".encode())
    return {"format": "pt", "iteration": str(manifest.iteration), "checkpoint": digest.hexdigest()}


_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18})")
#: Number of available checkpoints to print.
_NAMED = 10


def steps_range(text: str) -> range:
    """Parse `A:B:C`, from A to B inclusive, in steps of C. Raises ValueError, one line."""
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"--steps {text!a}: give FIRST:LAST:EVERY, e.g. 1000:9000:1000")
    first, last, every = map(int, match.groups())
    if first > last:
        raise ValueError(f"--steps {text}: {first} comes after {last}: give {last}:{first}:{every}")
    if every == 0:
        raise ValueError(f"--steps {text}: EVERY must be at least 1")
    return range(first, last + 1, every)


def found_latest(root: Path) -> Found:
    """Return the latest checkpoint. Raises CheckpointError if there is none."""
    found = latest_checkpoint(root)
    if found is None:
        raise CheckpointError(f"{root} has no checkpoints")
    return found


def found_steps(root: Path, wanted: range) -> list[Found]:
    """Return the checkpoints of these iterations, complete by their sizes, in order.

    Raises CheckpointError for one that is missing or incomplete. A range may be too long to list.
    """
    there = sorted(number for one in checkpoint_folders(root) if (number := iteration_of(one.name)) is not None)
    meant = [number for number in there if number in wanted]
    if len(meant) < len(wanted):
        first = next(number for number in wanted if number not in meant)
        newest = ", ".join(map(str, there[-_NAMED:])) or "none"
        raise CheckpointError(f"{tag_of(first)} is not in {root}: available are {newest}")
    for number in meant:
        if fault := fault_of(root / tag_of(number)):
            raise CheckpointError(f"{tag_of(number)} is not complete: {fault}")
    return [Found(root / tag_of(number), read_manifest(root / tag_of(number))) for number in meant]
