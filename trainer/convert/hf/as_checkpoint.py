"""An imported model as a checkpoint of weights, cut for one rank, from which every layout's training can begin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.convert.hf.imported_model import ImportedModel
from trainer.convert.native import NativeFiles
from trainer.convert.output import being_written
from trainer.core.files import write_atomically
from trainer.data.progress import Progress
from trainer.formats.checkpoint.manifest import LATEST, MANIFEST, Manifest, SavedFile, tag_of
from trainer.formats.checkpoint.origin import saved_now, started_now
from trainer.formats.checkpoint.partitions import Cut
from trainer.formats.checkpoint.progress import Progress as Counters
from trainer.formats.checkpoint.resumable import IMPORTED, NO_OPTIMIZER
from trainer.formats.checkpoint.saved_parameters import saved_parameters
from trainer.formats.checkpoint.training_identity import layout_facts
from trainer.formats.data.vocabulary_files import tokenizer_identity
from trainer.formats.json_text import json_file_text
from trainer.recipe.identity import training_facts


def write_checkpoint(model: ImportedModel, source: Path, root: Path) -> dict[str, SavedFile]:
    """Write the model to `root` as the checkpoint of iteration 0 and point `latest` at it; returns its files.

    One parameter at a time is in memory. Raises CheckpointError; nothing is left then.
    """
    layout = {**layout_facts(model.options, 1), "optimizer": NO_OPTIMIZER}
    parameters = saved_parameters(model.shape)
    files = NativeFiles(model, parameters, Cut.of(layout), model.precision, lambda _rank: _state(model))
    tasks = files.tasks()
    with (
        being_written(root / tag_of(0), files.size_bytes()) as folder,
        Progress(f"importing {source.name}", sum(size for size, _ in tasks)) as progress,
    ):
        written: dict[str, SavedFile] = {}
        done = 0
        for size, task in tasks:
            written |= task(folder)
            done += size
            progress.reached(done)
        manifest = Manifest(
            **Counters.none().counters(),
            precision=model.precision,
            layout=layout,
            model=model.shape.facts(),
            learning_rate={},
            files=written,
            parameters=parameters,
            training=_identity(model),
            saved=saved_now(),
            history=(started_now(kind=IMPORTED, iteration=0, loaded_from=str(source.absolute()), layout=layout),),
        )
        write_atomically(folder / MANIFEST, json_file_text(manifest.as_json()))
    write_atomically(root / LATEST, tag_of(0))
    return written


def _identity(model: ImportedModel) -> dict[str, Any]:
    """What a training that begins from the model must have as well: what the weights were trained for."""
    facts = training_facts(model.options)
    names = ("gelu", "layernorm_epsilon", "apply_residual_connection_post_layernorm", "rotary_base", "rotary_percent")
    tokenizer = tokenizer_identity(model.options)
    return {**{name: facts[name] for name in names if name in facts}, **({"tokenizer": tokenizer} if tokenizer else {})}


def _state(model: ImportedModel) -> dict[str, Any]:
    """What stands beside the weights, by DeepSpeed's names and the trainer's."""
    return {
        "module": None,
        "optimizer": None,
        "lr_scheduler": None,
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
