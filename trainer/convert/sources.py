"""What is to be converted: a checkpoint of ours or a universal one, with all that it says of its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trainer.convert.states import NativeStates, States, read_whole, refuse_unsharded
from trainer.convert.universal_states import UniversalStates, refuse_half_written
from trainer.formats.checkpoint.manifest import (
    LATEST,
    MANIFEST,
    Manifest,
    check_files,
    check_sizes,
    latest_checkpoint,
    read_manifest,
    read_manifest_file,
)
from trainer.formats.checkpoint.partitions import Cut, state_file
from trainer.formats.checkpoint.progress import Progress
from trainer.formats.checkpoint.saved_parameters import parameters_of, saved_parameters
from trainer.formats.checkpoint.training_identity import Identity
from trainer.formats.checkpoint.universal import LATEST_UNIVERSAL, UNIVERSAL_MANIFEST, ZERO
from trainer.formats.errors import CheckpointError
from trainer.recipe.learning_rate import LearningRateSchedule
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.options import Options
from trainer.recipe.vocabulary import Vocabulary

# Counters as the training's own part of a file calls them, by their names in a manifest.
_COUNTERS = {
    "iteration": "iteration",
    "consumed_train_samples": "consumed_train_samples",
    "consumed_train_tokens": "tokens",
    "consumed_valid_samples": "consumed_valid_samples",
}


@dataclass(frozen=True)
class Source:
    """A checkpoint that can be converted. model_ranks: how many files of `state_file` it has."""

    folder: Path
    manifest: Manifest  # of a universal one the one that was converted
    states: States
    model_ranks: int
    is_universal: bool

    def client_state(self, model_rank: int) -> dict[str, Any]:
        """What the engine and the training said of themselves on a model rank; where it has no such, on the first."""
        path = self.folder / state_file(model_rank if model_rank < self.model_ranks else 0)
        found = read_whole(path)
        if not isinstance(found, dict):
            raise CheckpointError(f"{path} is not what it is called")
        return found


def open_source(folder: Path) -> Source:
    """The checkpoint that `folder` is, or that it names as its latest. Raises CheckpointError, one line."""
    if (folder / MANIFEST).exists():
        return _native(folder, read_manifest(folder))
    if (folder / ZERO).exists() or (folder / UNIVERSAL_MANIFEST).exists():
        return _universal(folder)
    if (folder / LATEST).exists():
        found = latest_checkpoint(folder)
        assert found is not None
        return _native(found.folder, found.manifest)
    pointer = folder / LATEST_UNIVERSAL
    if pointer.is_file():
        return _universal(folder / pointer.read_text().strip())
    what = "has no checkpoint, neither of ours nor a universal one" if folder.is_dir() else "is no folder"
    raise CheckpointError(f"{folder} {what}: give the folder global_stepN, or one with a folder {ZERO}")


def _native(folder: Path, manifest: Manifest) -> Source:
    check_files(folder, manifest)
    refuse_unsharded(folder, manifest)
    try:
        cut = Cut.of(manifest.layout)
    except ValueError as error:
        raise CheckpointError(f"{folder / MANIFEST}: {error}") from None
    return Source(folder, manifest, NativeStates(folder, manifest), cut.tensor * cut.pipeline, is_universal=False)


def _universal(folder: Path) -> Source:
    refuse_half_written(folder)
    first = folder / state_file(0)
    if not first.is_file():
        raise CheckpointError(f"{first} is missing: {folder} is half written")
    state = read_whole(first)
    ranks = state.get("mp_world_size") if isinstance(state, Mapping) else None
    if not isinstance(ranks, int) or ranks < 1:
        raise CheckpointError(f"{first} does not say how many such files there are (mp_world_size)")
    for rank in range(ranks):
        if not (folder / state_file(rank)).is_file():
            raise CheckpointError(f"{folder / state_file(rank)} is missing: {folder} is half written")
    manifest = _own_manifest(folder) or _told_by(first, state)
    optimizer = str(manifest.layout.get("optimizer"))
    states = UniversalStates(folder, parameters_of(manifest), manifest.precision, optimizer)
    return Source(folder, manifest, states, ranks, is_universal=True)


def _own_manifest(folder: Path) -> Manifest | None:
    """The manifest that this trainer has written beside the states; None where DeepSpeed has written them."""
    if not (folder / UNIVERSAL_MANIFEST).exists():
        return None
    manifest = read_manifest_file(folder / UNIVERSAL_MANIFEST)
    check_sizes(folder, manifest)
    return manifest


def _told_by(path: Path, state: Mapping[str, Any]) -> Manifest:
    """A manifest of what the training says of itself in its part of an engine's file."""
    arguments, sizes = state.get("args"), state.get("checkpoint_info")
    if not isinstance(arguments, Mapping) or not isinstance(sizes, Mapping):
        raise CheckpointError(
            f"{path} has no args and checkpoint_info of this trainer, so nobody can tell what it is a checkpoint of: "
            f"convert the checkpoint that it was made of, which has a {MANIFEST}"
        )
    missing = [name for name in _COUNTERS.values() if not isinstance(state.get(name), int)]
    if missing:
        raise CheckpointError(f"{path} does not say {', '.join(missing)}: how far its training was cannot be told")
    try:
        options = Options(dict(arguments))
        vocabulary = Vocabulary(sizes["original_vocab_size"], sizes["padded_vocab_size"])
        ranks = options.tensor_model_parallel_size * options.pipeline_model_parallel_size * state["dp_world_size"]
        identity = Identity.of(options, ranks, vocabulary)
        schedule = LearningRateSchedule.of(options).facts()
    except (KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: its args do not say {error}: they are another trainer's") from None
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: its args cannot be right: {error}") from None
    counters = {name: state[told] for name, told in _COUNTERS.items()}
    return Manifest(
        **Progress(**counters).counters(),
        precision=identity.precision,
        layout=identity.layout,
        model=identity.model,
        learning_rate=schedule,
        files={},
        parameters=saved_parameters(ModelShape.of_facts(identity.model)),
        training=identity.training,
        settings=identity.settings,
    )


def with_rows(source: Source, tensor: int) -> Manifest:
    """The manifest of the same model with the embedding as large as the training makes it for `tensor` ranks.

    Raises CheckpointError where they cannot share it.
    """
    manifest, given = source.manifest, source.client_state(0).get("args")
    rows, tokens = manifest.model["padded_vocab_size"], manifest.model.get("vocab_size")
    if isinstance(given, Mapping) and tokens is not None:
        try:
            rows = Vocabulary.of(tokens, {**given, "tensor_model_parallel_size": tensor}).rows
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{source.folder}: its vocabulary for TP {tensor}: {error}") from None
    model = {**manifest.model, "padded_vocab_size": rows}
    return msgspec.structs.replace(manifest, model=model, parameters=saved_parameters(ModelShape.of_facts(model)))
