"""Export of one checkpoint as a transformers folder: planned from shapes, written to a temporary folder, renamed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import xxhash

from trainer.checkpoint.saved_state import SavedState
from trainer.convert.hf.documents import About, Documents, documents
from trainer.convert.hf.saved_model import SavedModel
from trainer.convert.hf.tensor_file import TensorFile, divided, read_tensor_file, write_tensors
from trainer.convert.output import being_written
from trainer.core.files import create_file, write_atomically
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
#: The key, in the header of every file of weights, that identifies the checkpoint.
_ITERATION, _CHECKPOINT = "iteration", "checkpoint"


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

    def said(self, folder: Path, state: str) -> ExportedModel:
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


def planned(found: Found, family: str | None, dtype: str | None, file_bytes: int, about: About) -> Export:
    """Plan the folder of a checkpoint. Raises CheckpointError if its format cannot express the model."""
    model = SavedModel(SavedState(found.folder, found.manifest), found.manifest, family, dtype)
    files = divided(model.entries, file_bytes, _notes(found.manifest))
    return Export(model, found.manifest, files, documents(model, found.manifest, files, about))


def planned_repair(found: Found, target: Path, family: str | None, about: About) -> Export:
    """Plan the folder of a checkpoint whose weights are already in `target`, of any type and number of files.

    Raises CheckpointError if they are missing, or are another checkpoint's.
    """
    files = _files_there(target)
    dtypes = {entry.dtype for file in files for entry in file.entries}
    names = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)
    if len(names) != 1:
        raise CheckpointError(f"{target} has weights of several types ({', '.join(names)}): export it again elsewhere")
    model = SavedModel(SavedState(found.folder, found.manifest), found.manifest, family, names[0])
    _refuse_other_weights(target, files, model, _notes(found.manifest))
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
            with os.fdopen(create_file(folder / name), "w", encoding="utf-8") as sink:
                sink.write(text)
                sink.flush()
                os.fsync(sink.fileno())


def repair(export: Export, target: Path) -> None:
    """Write all files except the weights again. Raises OSError."""
    for name, text in export.documents.texts.items():
        write_atomically(target / name, text)


def is_written(export: Export, target: Path) -> bool:
    """Return True if `target` has exactly these weights, complete, and a file for every other name."""
    there = all((target / name).is_file() for name in export.documents.texts)
    return there and all(file.is_written(target) for file in export.files)


def _notes(manifest: Manifest) -> dict[str, str]:
    """Return the notes in the files' headers. transformers requires `format`."""
    digest = xxhash.xxh64()
    for name, file in sorted(manifest.files.items()):
        digest.update(f"{name} {file.xxh64}\n".encode())
    return {"format": "pt", _ITERATION: str(manifest.iteration), _CHECKPOINT: digest.hexdigest()}


def _files_there(target: Path) -> list[TensorFile]:
    paths = sorted(target.glob("model*.safetensors"))
    if not paths:
        raise CheckpointError(f"{target} has no weights: leave out --metadata-only")
    return [read_tensor_file(path) for path in paths]


def _refuse_other_weights(target: Path, files: list[TensorFile], model: SavedModel, notes: dict[str, str]) -> None:
    for file in files:
        if any(file.notes.get(name) != notes[name] for name in (_ITERATION, _CHECKPOINT)):
            theirs = file.notes.get(_ITERATION)
            said = "of an unknown checkpoint" if theirs is None else f"those of a {tag_of(int(theirs))}"
            raise CheckpointError(
                f"{target / file.name} has weights {said}, not of this {tag_of(int(notes[_ITERATION]))}: "
                "give the checkpoint that was exported there, or another --output"
            )
    there = {entry.name: entry.shape for file in files for entry in file.entries}
    wanted = {entry.name: entry.shape for entry in model.entries}
    if there != wanted:
        name = min(name for name in {*there, *wanted} if there.get(name) != wanted.get(name))
        raise CheckpointError(
            f"{target}: {name} is {there.get(name) or 'missing'}, the checkpoint has {wanted.get(name) or 'none'}: "
            "export it again elsewhere"
        )


_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18})")
#: Number of names to print if many are missing or available.
_NAMED = 5


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
        has = set(meant)
        first = next(number for number in wanted if number not in has)
        more = len(wanted) - len(meant) - 1
        others = f" and {more} more of the range are" if more else " is"
        raise CheckpointError(f"{tag_of(first)}{others} not in {root}: available {_listed(there)}")
    for number in meant:
        if fault := fault_of(root / tag_of(number)):
            raise CheckpointError(f"{tag_of(number)} is not complete: {fault}")
    return [Found(root / tag_of(number), read_manifest(root / tag_of(number))) for number in meant]


def _listed(there: list[int]) -> str:
    if not there:
        return "are no checkpoints"
    if len(there) <= 2 * _NAMED:
        return f"{'is' if len(there) == 1 else 'are'} {', '.join(map(str, there))}"
    ends = (*map(str, there[:_NAMED]), "...", *map(str, there[-_NAMED:]))
    return f"are {', '.join(ends)} ({len(there)})"
