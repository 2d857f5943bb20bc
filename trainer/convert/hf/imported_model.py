"""A published model as one of the trainer's: its options, and our parameters, each read on request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from trainer.checkpoint.saved_state import Part
from trainer.convert.conversion import write_native
from trainer.convert.hf.documents import TOKENIZER
from trainer.convert.hf.families import Family, Heads, Place, family_named, their_shapes, to_ours
from trainer.convert.hf.saved_model import PRECISIONS
from trainer.convert.hf.tensor_file import CONFIG, INDEX, WHOLE, TensorEntry, read_tensor_file
from trainer.convert.native import NativeFiles
from trainer.convert.workers import default_workers
from trainer.core.dtypes import DTYPES_BY_NAME
from trainer.core.files import read_plain
from trainer.formats.checkpoint.changes import layout_facts
from trainer.formats.checkpoint.history import Progress as Counters
from trainer.formats.checkpoint.history import saved_now, started_now
from trainer.formats.checkpoint.manifest import Manifest, SavedParameter
from trainer.formats.checkpoint.partitions import Cut, saved_parameters
from trainer.formats.checkpoint.starting import IMPORTED, NO_OPTIMIZER
from trainer.formats.data.vocabulary_files import tokenizer_identity
from trainer.formats.errors import CheckpointError
from trainer.recipe.identity import OF_MODEL, training_facts
from trainer.recipe.model_options import Vocabulary
from trainer.recipe.model_shape import ModelShape
from trainer.recipe.option_rules import combination_errors
from trainer.recipe.options import Options, from_tables

_LARGEST_JSON_BYTES = 1 << 26


class PublishedModel:
    """A transformers folder. The constructor and all methods raise CheckpointError if it is invalid."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / CONFIG)
        self.file_of = _tensor_files(folder)

    def described(self) -> Iterator[TensorEntry]:
        """Yield shape and type of every tensor, from the files' headers."""
        for file in dict.fromkeys(self.file_of.values()):
            entries = read_tensor_file(self.folder / file).entries
            yield from (entry for entry in entries if self.file_of.get(entry.name) == file)

    def tensor(self, name: str) -> Tensor:
        """Return one tensor as it is stored."""
        path = self.folder / self.file_of[name]
        try:
            with safe_open(path, framework="pt") as tensors:
                found: Tensor = tensors.get_tensor(name)
                return found
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path}: {name!a} cannot be read: {str(error).splitlines()[0]}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file. Raises CheckpointError."""
    try:
        value = json.loads(read_plain(path, _LARGEST_JSON_BYTES))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}: give a folder that transformers loads from") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} contains {type(value).__name__} instead of an object")
    return value


def _tensor_files(folder: Path) -> dict[str, str]:
    """Return tensor's name -> file's name."""
    index = folder / INDEX
    if not index.is_file():
        if not (folder / WHOLE).is_file():
            raise CheckpointError(f"{folder} has no weights: expected {WHOLE} or {INDEX}")
        return {entry.name: WHOLE for entry in read_tensor_file(folder / WHOLE).entries}
    mapped = read_json(index).get("weight_map")
    if not isinstance(mapped, dict) or not mapped:
        raise CheckpointError(f"{index} has no weight_map")
    for file in mapped.values():
        # The file's names are not trusted: none may lead outside its folder.
        if not isinstance(file, str) or Path(file).name != file or not file.isprintable():
            raise CheckpointError(f"{index} names {file!a}, which is not a file of the folder")
        if not (folder / file).is_file():
            raise CheckpointError(f"{index} names {file}, which is missing")
    return mapped


#: Their output layer, which some files have although it is the embedding.
_OUTPUT = "lm_head.weight"


class ImportedModel:
    """The model in a folder, as states for a checkpoint: weights only.

    divisible_by: pad the vocabulary to a multiple of this. parameters: ours, whole, without padding. Raises
    CheckpointError, with both values, for an unsupported model.
    """

    def __init__(self, folder: Path, divisible_by: int) -> None:
        self._published = PublishedModel(folder)
        config = self._published.config
        if config.get("quantization_config"):
            raise CheckpointError("config.json: it is quantized, the trainer's weights are fp32, bf16 or fp16")
        self.family: Family = family_named(config.get("model_type"))
        self.given = {**self.family.options_of(config), **_tokenizer(folder)}
        layers, tensors = self.given["num_layers"], len(self._published.file_of)
        if layers > tensors:  # a table of 10^18 layers would fill the memory first
            raise CheckpointError(f"config.json: it has {layers} layers, and its files have {tensors} tensors in all")
        self.options: Options = from_tables({**self.given, "make_vocab_size_divisible_by": divisible_by}, 1)
        if wrong := combination_errors(self.options, 1):
            raise CheckpointError(f"the trainer does not support this model: {wrong[0]}")
        try:
            vocabulary = Vocabulary.of(self.given["vocab_size"], self.options)
        except ValueError as error:
            raise CheckpointError(str(error)) from None
        self._their_name = {self._with_prefix(name): name for name in self._published.file_of}
        entries = {self._with_prefix(one.name): one for one in self._published.described()}
        self.precision = self._precision(entries)
        self.options = self.options.replace(bf16=self.precision == "bf16", fp16=self.precision == "fp16")
        self.shape = ModelShape.of(self.options, vocabulary)
        unpadded = replace(self.shape, vocabulary=self.shape.tokens)
        self.parameters: Mapping[str, SavedParameter] = {one.name: one for one in saved_parameters(unpadded)}
        self._refuse_other_tensors(entries)

    def weight(self, name: str, part: Part | None = None) -> Tensor:
        """Return a part of our parameter (None: the whole), without padding rows. Raises CheckpointError."""
        place = self._place(name)
        theirs = [self._published.tensor(self._their_name[one]) for one in place.names]
        whole = to_ours(place, theirs, Heads.of(self.shape))
        return whole if part is None else whole[part]

    @property
    def moments(self) -> tuple[str, ...]:
        """The optimizer's states of each parameter: none."""
        return ()

    def optimizer(self, name: str, which: str, part: Part | None = None) -> Tensor:
        """Raise CheckpointError: there are no optimizer states."""
        raise CheckpointError(f"a published model has no {which} of {name}")

    def step(self, name: str) -> float:
        """Return 0: no step was taken."""
        return 0.0

    def common_state(self) -> dict[str, Any]:
        """Return the optimizer's own state: empty."""
        return {}

    def refuse_other_output_layer(self) -> None:
        """Raise CheckpointError if the output layer is not the embedding, although the model declares them tied."""
        output = self._their_name.get(_OUTPUT)
        if output is None or not self.shape.tied:
            return
        (embedding,) = (self._their_name[one] for one in self._place("word_embeddings.weight").names)
        if not torch.equal(self._published.tensor(output), self._published.tensor(embedding)):
            raise CheckpointError(f"{output} differs from {embedding}, the trainer has one for both")

    def _place(self, name: str) -> Place:
        place = self.family.place_of(name)
        assert place is not None, "a family has a place for every parameter of its models"
        return place

    def _with_prefix(self, name: str) -> str:
        return name if name == _OUTPUT or name.startswith(self.family.prefix) else self.family.prefix + name

    def _precision(self, entries: Mapping[str, TensorEntry]) -> str:
        dtypes = {entry.dtype for name, entry in entries.items() if not self._is_left_over(name)}
        names = {dtype: name for name, dtype in DTYPES_BY_NAME.items()}
        found = sorted(names.get(dtype, str(dtype)) for dtype in dtypes)
        precision = next((ours for ours, theirs in PRECISIONS.items() if [theirs] == found), None)
        if precision is None:
            raise CheckpointError(
                f"its weights are of {', '.join(found)}: one of {', '.join(DTYPES_BY_NAME)} for all is needed"
            )
        return precision

    def _is_left_over(self, name: str) -> bool:
        return self.family.leftovers.fullmatch(name) is not None

    def _refuse_other_tensors(self, entries: Mapping[str, TensorEntry]) -> None:
        expected: dict[str, tuple[int, ...]] = {}
        for name, parameter in self.parameters.items():
            place = self._place(name)
            expected |= zip(place.names, their_shapes(place, parameter.shape, Heads.of(self.shape)), strict=True)
        for name, shape in expected.items():
            found = entries[name].shape if name in entries else "missing"
            if found != shape:
                raise CheckpointError(f"{name} is {found}, config.json makes it {shape}")
        unknown = [name for name in entries if name not in {*expected, _OUTPUT} and not self._is_left_over(name)]
        if unknown:
            raise CheckpointError(f"{unknown[0]!a} has no counterpart in the trainer ({len(unknown)} have none)")


def _tokenizer(folder: Path) -> dict[str, Any]:
    has = (folder / TOKENIZER).is_file() or (folder / "vocab.json").is_file()
    return {"tokenizer_name_or_path": str(folder.absolute())} if has else {}


def write_checkpoint(model: ImportedModel, source: Path, root: Path) -> Manifest:
    """Write the model to `root` as the checkpoint of iteration 0, with `latest`; return its manifest.

    One parameter at a time is in the memory of each worker. Raises CheckpointError, and removes all files then.
    """
    layout = {**layout_facts(model.options, 1), "optimizer": NO_OPTIMIZER}
    parameters = saved_parameters(model.shape)
    manifest = Manifest(
        **Counters.none().counters(),
        precision=model.precision,
        layout=layout,
        model=model.shape.facts(),
        learning_rate={},
        files={},
        parameters=parameters,
        training=_identity(model),
        saved=saved_now(),
        history=(started_now(kind=IMPORTED, iteration=0, loaded_from=str(source.absolute()), layout=layout),),
    )
    files = NativeFiles(model, parameters, Cut.of(layout), model.precision, lambda _rank: _state(model))
    return write_native(files, root, manifest, default_workers())


def _identity(model: ImportedModel) -> dict[str, Any]:
    """Return the facts that a training from this model must share, because the weights were trained for them."""
    facts = training_facts(model.options)
    names = ("gelu", "layernorm_epsilon", "apply_residual_connection_post_layernorm", *OF_MODEL)
    tokenizer = tokenizer_identity(model.options)
    return {**{name: facts[name] for name in names if name in facts}, **({"tokenizer": tokenizer} if tokenizer else {})}


def _state(model: ImportedModel) -> dict[str, Any]:
    """Return the other state, by DeepSpeed's and the trainer's names."""
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
