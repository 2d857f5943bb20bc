"""An imported model as a checkpoint of weights, cut for one rank, from which every layout's training can begin."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from trainer.checkpoint.write import write
from trainer.files import make_folder, write_atomically
from trainer.formats.json_text import json_file_text
from trainer.formats.manifest import LATEST, MANIFEST, Manifest, tag_of
from trainer.formats.origin import saved_now, started_now
from trainer.formats.partitions import state_file, weights_file
from trainer.formats.progress import Progress
from trainer.formats.resumable import IMPORTED, NO_OPTIMIZER, layout_facts
from trainer.formats.saved_parameters import saved_parameters
from trainer.formats.vocabulary_files import tokenizer_identity
from trainer.interchange.hf.imported_model import ImportedModel
from trainer.interchange.output import being_written
from trainer.recipe.identity import training_facts


def write_native(model: ImportedModel, source: Path, root: Path) -> None:
    """Write the model to `root` as the checkpoint of iteration 0 and point `latest` at it.

    One layer at a time is in memory. Raises CheckpointError; nothing is left then.
    """
    names: dict[int, dict[str, str]] = {}
    for name, parameter in model.parameters.items():
        names.setdefault(parameter.layer, {})[parameter.name] = name

    def layer(number: int) -> dict[str, Any]:
        return {own: model.tensor(name) for own, name in names[number].items()}

    files: dict[str, Callable[[], Any]] = {weights_file(number, 0): partial(layer, number) for number in names}
    files[state_file(0)] = lambda: _state(model)
    layout = {**layout_facts(model.options, 1), "optimizer": NO_OPTIMIZER}
    size = sum(one.size for one in model.parameters.values()) * (4 if model.precision == "fp32" else 2)
    make_folder(root)
    with being_written(root / tag_of(0), size) as folder:
        manifest = Manifest(
            **Progress.none().counters(),
            precision=model.precision,
            layout=layout,
            model=model.shape.facts(),
            learning_rate={},
            files=write(files, folder),
            parameters=saved_parameters(model.shape),
            training=_identity(model),
            saved=saved_now(),
            history=(started_now(kind=IMPORTED, iteration=0, loaded_from=str(source.absolute()), layout=layout),),
        )
        write_atomically(folder / MANIFEST, json_file_text(manifest.as_json()))
    write_atomically(root / LATEST, tag_of(0))


def _identity(model: ImportedModel) -> dict[str, Any]:
    """What a training that begins from the model must have as well: what the weights were trained for."""
    facts = training_facts(model.options)
    names = ("gelu", "layernorm_epsilon", "apply_residual_connection_post_layernorm")
    tokenizer = tokenizer_identity(model.options)
    return {**{name: facts[name] for name in names}, **({"tokenizer": tokenizer} if tokenizer else {})}


def _state(model: ImportedModel) -> dict[str, Any]:
    """What stands beside the weights, by DeepSpeed's names and the trainer's."""
    return {
        "module": None,
        "optimizer": None,
        "lr_scheduler": None,
        "dp_world_size": 1,
        "mp_world_size": 1,
        "global_steps": 0,
        "global_samples": 0,
        "skipped_steps": 0,
        "checkpoint_version": 3.0,
        "args": dict(model.options),
        "iteration": 0,
        "tokens": 0,
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
        "checkpoint_info": {
            "padded_vocab_size": model.shape.vocabulary,
            "original_vocab_size": model.shape.tokens,
        },
    }
